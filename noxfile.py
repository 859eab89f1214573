"""Sessions for every package below packages/: `nox -l` lists them.

`nox` alone lints, type-checks, tests and tries the demo. Campaigns (`chaos`, `fuzz`, `bench`) are asked for by name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "contracts", "tests", "repo", "conformance", "demo"]
nox.options.default_venv_backend = "venv"

PYTHON = "3.11"
PACKAGES = {p.parent.name: nox.project.load_toml(p) for p in sorted(Path("packages").glob("*/pyproject.toml"))}
PLUGINS = [name for name in PACKAGES if name != "det-core"]
LINT = ["ruff==0.17.5"]


def constraints(name: str) -> list[str]:
    """Return pip's option for the pins of a package's environment, where it has any."""
    file = Path("constraints") / f"{name}.txt"
    return ["--constraint", str(file)] if file.exists() else []


def needs(name: str) -> list[str]:
    """Return the packages of this repository that a package stands on, itself last."""
    listed = PACKAGES[name]["project"].get("dependencies", [])
    names = {text.split(">")[0].split("=")[0].split("[")[0].strip() for text in listed}
    return [*(each for each in PACKAGES if each in names), name]


def install(session: nox.Session, name: str, *more: str, editable: bool = True) -> None:
    """Install a package with what it stands on here, under its pins, with the requirements of its tests."""
    groups = nox.project.dependency_groups(PACKAGES[name], "test")
    where = [argument for each in needs(name) for argument in (("-e",) if editable else ()) + (f"packages/{each}",)]
    session.install(*constraints(name), *where, *groups, *more)


@nox.session(python=PYTHON)
@nox.parametrize("package", list(PACKAGES))
def tests(session: nox.Session, package: str) -> None:
    """Test one package against the core in this tree."""
    install(session, package)
    folders = [Path("tests") / package.replace("-", "_"), Path("tests/contract")]
    found = [str(folder) for folder in folders if folder.is_dir()]
    session.run("pytest", *found, *session.posargs)


@nox.session(python=PYTHON)
def repo(session: nox.Session) -> None:
    """Test the repository itself: its layout, its docs, its examples' configurations."""
    install(session, "det-torch")
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
    install(session, "det-torch", "mypy==2.4.1", "types-PyYAML")
    for name in PACKAGES:
        session.run("mypy", f"packages/{name}/src")


@nox.session(python=PYTHON)
def contracts(session: nox.Session) -> None:
    """Check who may import whom."""
    install(session, "det-torch", "import-linter>=2.1")
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
    groups = [each for name in PACKAGES for each in nox.project.dependency_groups(PACKAGES[name], "test")]
    session.install(*constraints("det-torch"), "--force-reinstall", "--no-deps", *built)
    session.install(*constraints("det-torch"), *built, *groups)
    session.run("pytest", "tests/contract", *session.posargs)


@nox.session(python=PYTHON)
def demo(session: nox.Session) -> None:
    """Train the digits example and print what it found."""
    install(session, "det-torch")
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
    install(session, "det-torch")
    campaigns = ["tests/det_torch/test_exact_resume.py", "tests/det_core/experiment/test_search_chaos.py"]
    session.run("pytest", *campaigns, "--kills=20", "-o", "timeout=3600", *session.posargs)


@nox.session(python=PYTHON)
def fuzz(session: nox.Session) -> None:
    """Run every property test with many more examples: a campaign."""
    install(session, "det-core")
    session.run(
        "pytest", "tests/det_core", "-m", "hypothesis", "--examples-times=50", "-o", "timeout=3600", *session.posargs
    )


@nox.session(python=PYTHON)
def bench(session: nox.Session) -> None:
    """Run the benchmarks; each prints ratios. Install peers beside det to compare with them."""
    install(session, "det-torch", *session.posargs)
    for script in sorted(Path("benchmarks").glob("[!_]*.py")):
        session.run("python", str(script))

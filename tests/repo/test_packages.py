"""Every distribution has the same shape, and what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.repo.packages_table import written

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
HEAVY = (
    "jax",
    "keras",
    "lightning",
    "numpy",
    "optuna",
    "pandas",
    "scipy",
    "sklearn",
    "tensorflow",
    "torch",
)
UNBOUNDED = re.compile(r"^[A-Za-z0-9_.-]+(\[[\w,]+\])?$")


def project(package: Path) -> dict:
    return tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))


def distribution(package: Path) -> str:
    """On PyPI, `det-core` is another project's."""
    return {"det-core": "det-training-core"}.get(package.name, package.name)


def import_name(package: Path) -> str:
    """Determined's own name is that of the package which stands in for it."""
    return {"det-compat": "determined"}.get(package.name, package.name.replace("-", "_"))


def in_a_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


each = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


@each
def test_the_metadata_is_complete_and_of_one_kind(package: Path) -> None:
    about = project(package)
    assert about["build-system"]["build-backend"] == "hatchling.build"
    found = about["project"]
    assert found["name"] == distribution(package)
    assert found["license"] == "Apache-2.0"
    assert found["requires-python"].startswith(">=3.11")
    assert found["readme"] == "README.md"
    assert 20 < len(found["description"]) < 140
    assert "test" in about["dependency-groups"]


@each
def test_its_version_is_that_of_the_module(package: Path) -> None:
    source = (package / "src" / import_name(package) / "__init__.py").read_text(encoding="utf-8")
    assert (
        re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]
        == project(package)["project"]["version"]
    )


@each
def test_every_requirement_has_its_version_bounds(package: Path) -> None:
    """Every requirement has a lower bound, and one on a package of det also an upper one."""
    found = project(package)["project"]
    listed = [
        *found["dependencies"],
        *(r for extra in found.get("optional-dependencies", {}).values() for r in extra),
    ]
    assert [requirement for requirement in listed if UNBOUNDED.match(requirement)] == []
    assert [r for r in listed if r.startswith("det-") and not re.search(r">=.*<", r)] == []


@each
def test_no_extra_lets_pip_build_horovod(package: Path) -> None:
    """It would fail with an error of the compiler; `det horovod install` does not."""
    extras = project(package)["project"].get("optional-dependencies", {})
    assert [text for texts in extras.values() for text in texts if text.startswith("horovod")] == []


@each
def test_it_is_typed_and_has_a_readme_of_its_own(package: Path) -> None:
    assert (package / "src" / import_name(package) / "py.typed").is_file()
    readme = (package / "README.md").read_text(encoding="utf-8")
    assert readme.startswith(f"# {package.name}\n")
    assert "```" in readme


@each
def test_users_install_no_tool_of_the_tests(package: Path) -> None:
    found = project(package)["project"]
    listed = [
        *(found["dependencies"] if package.name != "det-testing" else ()),
        *(r for extra in found.get("optional-dependencies", {}).values() for r in extra),
    ]
    names = {re.split(r"[^\w.-]", requirement)[0] for requirement in listed}
    assert not names & {"pytest", "pytest-timeout", "hypothesis", "jsonschema", "pyte"}


@pytest.mark.process
@each
def test_its_hook_module_imports_nothing_heavy(package: Path) -> None:
    for entry in project(package)["project"].get("entry-points", {}).get("det", {}).values():
        module = entry.partition(":")[0]
        code = f"import sys, {module}; print(sorted(m for m in {HEAVY} if m in sys.modules))"
        assert in_a_process(code) == "[]"


def test_the_table_of_the_readme_is_made_from_their_metadata() -> None:
    """Where this fails, run tests/repo/packages_table.py."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert written(readme) == readme


def test_readme_links_exactly_the_existing_packages() -> None:
    linked = re.findall(
        r"\]\(packages/([\w-]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert sorted(linked) == sorted(package.name for package in PACKAGES)


@pytest.mark.process
def test_core_and_its_command_import_no_framework() -> None:
    code = f"""
import sys, det_core, det_driver.cli
from det_core.hooks import Plugins
Plugins.installed(strict=True)
print(sorted(m for m in {HEAVY} if m in sys.modules))
"""
    assert in_a_process(code) == "[]"


@pytest.mark.process
def test_importing_core_imports_none_of_what_it_needs_later() -> None:
    later = (
        "click",
        "cryptography",
        "fsspec",
        "msgspec",
        "packaging",
        "pathspec",
        "pluggy",
        "rich",
        "sqlite3",
        "yaml",
    )
    assert (
        in_a_process(f"import sys, det_core; print(sorted(m for m in {later} if m in sys.modules))")
        == "[]"
    )


@pytest.mark.process
def test_help_imports_nothing_that_it_does_not_show() -> None:
    code = f"""
import sys
sys.argv = ["det", "--help"]
from det_driver.cli import main
try:
    main()
except SystemExit:
    pass
print(sorted(m for m in {(*HEAVY, "fsspec", "rich", "sqlite3", "yaml")} if m in sys.modules))
"""
    assert in_a_process(code).splitlines()[-1] == "[]"


def test_there_is_a_changelog_with_every_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [package.name for package in PACKAGES if f"`{distribution(package)}`" not in text] == []


def sources_and_pages() -> list[Path]:
    """Return what users are shown.

    The code of packages, their READMEs, and the pages, but records of decisions.
    """
    patterns = (
        "packages/*/src/**/*.py",
        "packages/*/README.md",
        "packages/*/src/**/*.in",
        "examples/**/*.md",
    )
    pages = [
        path
        for path in (ROOT / "docs").rglob("*.md")
        if not {"decisions", "_build"} & set(path.parts)
    ]
    return [
        *(path for pattern in patterns for path in ROOT.glob(pattern)),
        *pages,
        ROOT / "README.md",
    ]


def test_nobody_is_asked_to_install_a_name_of_dets_from_an_index() -> None:
    """No index has it, and anybody may take a name that is free.

    In code, `how_to_install` knows the command.
    """
    ours = re.compile(r"pip install [^`\n]*?(?<![\w/-])(?:det-[\w{-]+)")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sources_and_pages()
        for match in ours.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []

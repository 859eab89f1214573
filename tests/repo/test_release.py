"""A release: one command moves all versions, and another says what is not ready."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.repo.test_text import ROOT, tracked
from tools.release import (
    UNPUBLISHED,
    bounds,
    distributions,
    link,
    main,
    move,
    packages,
    unready,
    versions,
)

TEMPLATES = "packages/det-testing/src/det_testing/templates"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the repository's texts."""
    patterns = (
        "*.toml",
        "*.md",
        "*.cff",
        "packages/*/src/*/__init__.py",
        "tests/repo/test_ex*.py",
        "tests/det_testing/*.py",
    )
    for file in {*tracked(*patterns), ROOT / "CITATION.cff", ROOT / "README.md"}:
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return tmp_path


def still_saying(tree: Path, pattern: str) -> list[str]:
    """Return the files, apart from the changelog and what `det plugin new` writes, that match."""
    found = re.compile(pattern, re.MULTILINE)
    files = (
        file
        for file in tree.rglob("*")
        if file.is_file() and file.name not in ("CHANGELOG.md", "test_release.py")
    )
    names = [
        str(file.relative_to(tree))
        for file in files
        if found.search(file.read_text(encoding="utf-8"))
    ]
    return sorted(name for name in names if not name.startswith(TEMPLATES))


def test_all_packages_say_one_version_everywhere() -> None:
    assert len(set(versions(ROOT).values())) == 1, versions(ROOT)
    assert len(versions(ROOT)) == 2 * len(packages(ROOT))
    [version] = set(versions(ROOT).values())
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version


def test_version_command_moves_all_versions_and_requirements(tree: Path) -> None:
    [before] = set(versions(tree).values())
    changed = move(tree, "7.8.9")
    assert set(versions(tree).values()) == {"7.8.9"}
    for name, folder in packages(tree).items():
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        asked = [need for need in project["dependencies"] if need.startswith("det-")]
        assert [need for need in asked if not need.endswith(">=7.8,<8")] == []
        assert f"packages/{name}/pyproject.toml" in changed
    assert {"README.md", "CITATION.cff", "docs/tutorials/first-run.md"} <= set(changed)
    assert still_saying(tree, re.escape(bounds(before))) == []
    names = "|".join([*packages(tree), *distributions(tree)])
    assert still_saying(tree, rf"\b(?:{names}) +{before}\b") == []
    assert move(tree, "7.8.9") == []


def test_version_moved_back_leaves_everything_unchanged(tree: Path) -> None:
    [before] = set(versions(tree).values())
    was = {file: file.read_bytes() for file in tree.rglob("*") if file.is_file()}
    move(tree, "7.8.9")
    move(tree, before)
    assert [file for file, content in was.items() if file.read_bytes() != content] == []


@pytest.mark.parametrize(
    ("version", "asked"),
    [
        ("0.1.0", ">=0.1,<0.2"),
        ("0.2.3", ">=0.2,<0.3"),
        ("1.4.0", ">=1.4,<2"),
        ("0.3.0rc1", ">=0.3.0rc1,<0.4"),
    ],
)
def test_packages_take_those_that_were_released_with_them(version: str, asked: str) -> None:
    assert bounds(version) == asked


def test_what_is_no_version_is_refused(tree: Path) -> None:
    with pytest.raises(
        SystemExit, match=r"'1.2' is no version; give one such as 0.2.0 or 1.0.0rc1"
    ):
        move(tree, "1.2")


@pytest.mark.slow
def test_what_is_not_ready_to_be_published_is_named(tree: Path) -> None:
    move(tree, "0.2.0")
    changelog = tree / "CHANGELOG.md"
    assert any(
        line.startswith("CHANGELOG.md has no heading '## 0.2.0, ")
        for line in unready(tree, "v0.2.0")
    )
    changelog.write_text(
        changelog.read_text().replace("## Unreleased: 0.2.0", "## 0.2.0, 2027-01-31")
    )
    assert [line.partition(" says that nothing ")[0] for line in unready(tree, "v0.2.0")] == [
        *UNPUBLISHED
    ]
    for name in UNPUBLISHED:
        page = tree / name
        page.write_text(re.sub("None [^.]*on PyPI yet", "All are on PyPI", page.read_text()))
    assert unready(tree, "v0.2.0") == []
    project = tree / "packages/det-torch/pyproject.toml"
    project.write_text(
        project.read_text().replace(
            '"det-training-core>=0.2,<0.3"', '"det-training-core>=0.1,<0.2"'
        )
    )
    assert unready(tree, "v0.2.0") == [
        "det-torch asks for det-training-core>=0.1,<0.2, and not for det-training-core>=0.2,<0.3"
    ]
    assert "packages/det-torch/pyproject.toml says 0.2.0, and not 0.3.0" in unready(tree, "v0.3.0")
    assert "CITATION.cff does not say version: 0.3.0" in unready(tree, "v0.3.0")


def test_build_gives_every_package_the_publishing_links(tree: Path) -> None:
    for _ in range(2):  # once is as good as twice
        link(tree, "https://example.org/somebody/det/")
    for name, folder in packages(tree).items():
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["urls"]["Homepage"] == "https://example.org/somebody/det"
        assert (
            project["urls"]["Source"]
            == f"https://example.org/somebody/det/tree/main/packages/{name}"
        )
        assert {"Changelog", "Documentation", "Issues"} <= set(project["urls"])
        assert project["entry-points"]["det"]
    with pytest.raises(
        SystemExit,
        match=r"'ftp://example\.org' is no address of a repository; give one that begins with",
    ):
        link(tree, "ftp://example.org")


def test_command_reports_its_changes_and_then_nothing_to_change(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree)
    main(["version", "0.2.0"])
    assert "packages/det-core/pyproject.toml" in capsys.readouterr().out.splitlines()
    main(["version", "0.2.0"])
    assert capsys.readouterr().out == "everything says 0.2.0 already\n"
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has no heading"):
        main(["check"])

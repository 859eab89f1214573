"""Messages name the command that installs a package of det's from where det itself came."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.distributions import lay_out

from det_core.hooks import discover
from det_core.support.installation import CORE, DISTRIBUTIONS, how_to_install, sources

ROOT = Path(__file__).parents[2]


@pytest.fixture
def core_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return what installs det_core from an origin, as `direct_url.json` names it.

    None is an index.
    """

    def install(origin: dict | None, name: str = CORE) -> None:
        site = tmp_path / "site"
        lay_out(site, name, version="0.1.0", entry_points={"core": "det_core._hooks"})
        if origin is not None:
            [about] = site.glob(f"{name.replace('-', '_')}-*.dist-info")
            (about / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(str(site))

    return install


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with packages that are not installed here.

    Its directory is one that a shell would split.
    """
    packages = tmp_path / "my clone" / "packages"
    for folder, name, needs, gpu in (
        ("det-core", CORE, [], []),
        ("det-sun", "det-sun", [f"{CORE}>=0.1,<0.2", "numpy>=1.24"], []),
        (
            "det-moon",
            "det-moon",
            [f"{CORE}>=0.1,<0.2", "det-sun>=0.1,<0.2"],
            ["det-star[far]>=0.1"],
        ),
        ("det-star", "det-star", ["det-sun>=0.1,<0.2"], []),
    ):
        project = packages / folder / "pyproject.toml"
        project.parent.mkdir(parents=True)
        project.write_text(
            f'[project]\nname = "{name}"\ndependencies ='
            f" {needs}\n[project.optional-dependencies]\ngpu = {gpu}\n"
        )
    return packages


@pytest.mark.parametrize("dir_info", [{}, {"editable": True}])
def test_from_a_clone_paths_are_installed_with_what_is_missing(
    core_from, clone: Path, dir_info: dict
) -> None:
    core_from({"url": (clone / "det-core").as_uri(), "dir_info": dir_info})
    pip = ["python3", "-m", "pip", "install"]
    assert shlex.split(how_to_install("det-sun")) == [*pip, f"{clone}/det-sun"]
    assert shlex.split(how_to_install("det-moon")) == [
        *pip,
        f"{clone}/det-sun",
        f"{clone}/det-moon",
    ]
    assert shlex.split(
        how_to_install("det-moon", "gpu", upgrade=True, python="/usr/bin/python3.12")
    ) == [
        *("/usr/bin/python3.12", "-m", "pip", "install", "--upgrade"),
        *(f"{clone}/det-sun", f"{clone}/det-star[far]", f"{clone}/det-moon[gpu]"),
    ]
    assert "'" in how_to_install("det-sun")
    assert sources("det-moon") == [
        str(clone / name) for name in ("det-core", "det-sun", "det-moon")
    ]


@pytest.mark.parametrize(
    "origin",
    [None, {"url": "file:///dist/det_training_core-0.1.0-py3-none-any.whl", "archive_info": {}}],
    ids=["index", "wheel"],
)
def test_from_an_index_names_are_installed(core_from, origin: dict | None) -> None:
    core_from(origin)
    assert how_to_install("det-moon") == "python3 -m pip install det-moon"
    assert how_to_install("det-keras", "cpu") == "python3 -m pip install 'det-keras[cpu]'"
    assert sources("det-node") == []


def test_from_a_repository_the_same_commit_is_installed(core_from) -> None:
    url, commit = "https://example.org/det.git", "0" * 40
    core_from(
        {
            "url": url,
            "vcs_info": {"vcs": "git", "commit_id": commit},
            "subdirectory": "packages/det-core",
        }
    )
    wanted = f"det-torch[export] @ git+{url}@{commit}#subdirectory=packages/det-torch"
    assert shlex.split(how_to_install("det-torch", "export")) == [
        "python3",
        "-m",
        "pip",
        "install",
        wanted,
    ]
    assert how_to_install(CORE).endswith("#subdirectory=packages/det-core'")
    assert sources("det-node") == [
        f"git+{url}@{commit}#subdirectory=packages/{folder}" for folder in ("det-core", "det-node")
    ]
    assert how_to_install("det-strange") == "python3 -m pip install det-strange"


def test_a_clone_that_is_gone_is_not_named(core_from, tmp_path: Path) -> None:
    core_from({"url": (tmp_path / "gone" / "packages" / "det-core").as_uri(), "dir_info": {}})
    assert how_to_install("det-torch") == "python3 -m pip install det-torch"


def test_the_names_of_dets_own_packages_are_those_that_there_are() -> None:
    files = ROOT.glob("packages/*/pyproject.toml")
    assert {
        tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"] for file in files
    } == DISTRIBUTIONS


def test_metadata_of_the_earlier_name_does_no_harm(
    core_from, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip leaves it where det was installed before its core was renamed."""
    core_from(None, name="det-core")
    found = [each for each in discover() if each.entry.value == "det_core._hooks"]
    assert len(found) == 1
    monkeypatch.setattr(
        sys, "path", [sys.path[0], *(place for place in sys.path if "site-packages" not in place)]
    )
    [alone] = discover()
    assert alone.distribution == "det-core"

"""`det plugin new` writes packages that work as they are."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.repo.reader import Reader, blocks
from tests.support.distributions import lay_out_project, on_path

from det_core import DetError
from det_testing.scaffold import KINDS, Names

each = pytest.mark.parametrize("kind", list(KINDS))
PASSED = {"framework": 26, "searcher": 20, "storage": 24, "engine": 3, "observer": 4}
"""At least so many tests pass: those of the kit, and the skeleton's own."""


def written(det, kind: str) -> Path:
    det("plugin", "new", f"my-{kind}", "--kind", kind)
    return det.cwd / f"det-my-{kind}"


@each
def test_it_passes_its_own_tests_as_it_was_written(det, tmp_path: Path, kind: str) -> None:
    project = written(det, kind)
    env = det.env(
        {**on_path(lay_out_project(tmp_path / "site", project)), "DET_STRICT_PLUGINS": "0"}
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= PASSED[kind]
    if kind in ("framework", "searcher", "storage"):
        assert f"det conformance my{kind}: " in done.stdout


@each
def test_it_is_listed_without_a_problem(det, tmp_path: Path, kind: str) -> None:
    site = lay_out_project(tmp_path / "site", written(det, kind))
    (row,) = (
        row
        for row in json.loads(det("plugins", "--no-load", "--json", env=on_path(site)).stdout)
        if row["name"] == f"my-{kind}"
    )
    assert row["distribution"] == f"det-my-{kind} 0.1.0"
    assert row["problem"] == ""


@each
def test_what_its_readme_says_can_be_done(det, tmp_path: Path, kind: str) -> None:
    project = written(det, kind)
    reader = Reader(det.home, det.cwd)
    reader.installs(project)
    for block in blocks(project / "README.md"):
        if block.language == "yaml" or not block.text.startswith("det preview"):
            reader.does(block)
    reader.leaves()


@each
def test_it_is_a_whole_package_without_a_trace_of_its_template(det, kind: str) -> None:
    project = written(det, kind)
    about = tomllib.loads((project / "pyproject.toml").read_text())
    assert about["project"]["name"] == f"det-my-{kind}"
    more = {"engine": ["det-node", "det-driver"], "searcher": ["det-driver"]}
    imported = ["det-training-core", *more.get(kind, [])]
    required = about["project"]["dependencies"]
    assert [need for need in required if need.startswith("det-")] == [
        f"{house}>=0.1,<0.2" for house in imported
    ]
    assert about["dependency-groups"]["test"][0] == "det-testing>=0.1,<0.2"
    assert list(about["project"]["entry-points"]["det"]) == [f"my-{kind}"]
    files = [path for path in project.rglob("*") if path.is_file()]
    names = {path.relative_to(project).as_posix() for path in files}
    assert {"pyproject.toml", "noxfile.py", "README.md", ".gitignore", "tests/conftest.py"} <= names
    assert {
        f"src/det_my_{kind}/{name}" for name in ("__init__.py", "_hooks.py", "py.typed")
    } <= names
    for path in files:
        text = path.read_text()
        assert "{{" not in text.replace("{{}}", ""), path
        assert not path.name.endswith(".in")
        if path.suffix == ".py":
            compile(text, str(path), "exec")


def test_its_nox_file_installs_det_from_where_it_came(det) -> None:
    """No index has det yet, so a new environment needs det's own packages from the clone."""
    text = (written(det, "searcher") / "noxfile.py").read_text()
    (listed,) = re.findall(r"^DET = (\[.*?\])$", text, re.M | re.S)
    places = [Path(place) for place in ast.literal_eval(listed)]
    assert [place.name for place in places] == [
        *("det-core", "det-node", "det-driver", "det-testing")
    ]
    assert all((place / "pyproject.toml").is_file() for place in places)


@each
def test_it_uses_public_names_only(det, kind: str) -> None:
    for path in written(det, kind).rglob("*.py"):
        private = (
            r"det_(core|node|driver|testing)[\w.]*\._\w+|from det_(core|node|driver|testing)[\w.]*"
            r" import _\w+"
        )
        assert re.findall(private, path.read_text()) == []


def test_the_hooks_of_a_framework_do_not_import_its_trial(det, tmp_path: Path) -> None:
    """A trial's module may import the framework, and every command imports the hooks."""
    env = det.env(on_path(lay_out_project(tmp_path / "site", written(det, "framework"))))
    source = (
        "import sys, det_my_framework._hooks; print('det_my_framework.trial' in sys.modules);"
        " from det_my_framework import MyFrameworkTrial"
    )
    ran = [sys.executable, "-c", source]
    done = subprocess.run(ran, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_it_says_what_it_wrote_and_how_to_try_it(det) -> None:
    said = det("plugin", "new", "moon", "--kind", "engine", "--dir", "far away").stdout
    assert "far away/det-moon/src/det_moon/engine.py\n" in said
    assert "python3 -m pip install -e './far away/det-moon'" in said
    assert (det.cwd / "far away" / "det-moon" / "pyproject.toml").is_file()


def test_nothing_is_overwritten(det) -> None:
    det("plugin", "new", "moon", "--kind", "engine")
    (det.cwd / "det-moon" / "README.md").write_text("mine")
    said = det("plugin", "new", "det-moon", "--kind", "engine", status=2).stderr
    assert said == "det: det-moon is there already; give another name, or another --dir\n"
    assert (det.cwd / "det-moon" / "README.md").read_text() == "mine"


def test_a_directory_that_cannot_be_written_is_named(det) -> None:
    (det.cwd / "file").write_text("")
    said = det("plugin", "new", "moon", "--kind", "engine", "--dir", "file", status=2).stderr
    assert said.startswith("det: cannot write file/det-moon")
    assert said.endswith("give another --dir\n")


def test_a_name_has_four_forms() -> None:
    for given in ("my-thing", "det-my-thing"):
        names = Names.of(given)
        forms = (names.name, names.distribution, names.package, names.class_)
        assert forms == ("my-thing", "det-my-thing", "det_my_thing", "MyThing")


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("MyThing", "my-thing"),
        ("my_thing", "my-thing"),
        ("2fast", "fast"),
        ("", "my-plugin"),
        ("../up", "up"),
        ("a b", "a-b"),
    ],
)
def test_what_cannot_be_a_name_is_answered_with_one_that_can(given: str, near: str) -> None:
    with pytest.raises(DetError, match=f"cannot be the name of a plugin; .*, such as '{near}'$"):
        Names.of(given)


def test_a_name_of_dets_own_is_refused() -> None:
    with pytest.raises(
        DetError, match="'det-core' is a name of det's own; give the plugin another"
    ):
        Names.of("det-core")


def test_a_name_that_is_taken_is_refused(det, tmp_path: Path) -> None:
    said = det("plugin", "new", "random", "--kind", "searcher", status=2).stderr
    assert said == "det: the searcher 'random' is registered already; give another name\n"
    site = lay_out_project(tmp_path / "site", written(det, "observer"))
    said = det(
        "plugin", "new", "my-observer", "--kind", "engine", env=on_path(site), status=2
    ).stderr
    assert (
        said == "det: a plugin 'my-observer' is installed already, by det-my-observer; give another"
        " name\n"
    )


def test_unknown_plugin_kind_error_lists_the_known_ones(det) -> None:
    said = det("plugin", "new", "moon", "--kind", "framwork", status=2).stderr
    assert (
        "'framwork' is not one of 'framework', 'searcher', 'storage', 'engine', 'observer'" in said
    )


def test_a_misspelt_subcommand_is_answered_with_the_right_one(det) -> None:
    assert "no such command 'nwe'" in det("plugin", "nwe", "moon", status=2).stderr


def test_help_says_what_there_is(det) -> None:
    said = " ".join(det("plugin", "new", "--help").stdout.split())
    assert "NAME" in said
    assert all(kind in said for kind in KINDS)

"""What the sessions of nox install and run, of packages as they lie there; no session is run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.repo.test_docs import PAGES
from tests.repo.test_docs import needed as needed_by

from det_testing.scaffold import KINDS, Names, write_plugin

pytest.importorskip("nox")
ROOT = Path(__file__).parents[2]
CODE = """
import json, sys, noxfile

class Session:
    posargs, env = (), {}
    def __init__(self, name): self.name, self.ran = name, []
    def run(self, *words, **options): self.ran.append(words)
    def install(self, *words): self.installed = words

found = {"det-torch": {"needs": noxfile.needs("det-torch")}}
for name in sys.argv[1:]:
    session = Session(name)
    noxfile.tests.func(session, name, name)
    groups = noxfile.test_groups([name, "det-testing"])
    found[name] = {"needs": noxfile.needs(name), "ran": session.ran, "asked": [*session.installed, *groups]}
print(json.dumps(found))
"""


@pytest.mark.process
def test_a_new_package_is_tested_as_it_was_written(tmp_path: Path) -> None:
    """Its tests are in its folder.

    They need det-testing, which is in the tree and on no index.
    """
    for file in (
        ROOT / "noxfile.py",
        ROOT / "tools/sessions.py",
        *ROOT.glob("packages/*/pyproject.toml"),
        *ROOT.glob("constraints/*.txt"),
    ):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    for kind in KINDS:
        write_plugin(Names.of(kind), kind, tmp_path / "packages")
    names = [f"det-{kind}" for kind in KINDS]
    code = [sys.executable, "-c", CODE, *names]
    done = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"det-core", "det-driver", "det-torch"} <= set(found["det-torch"]["needs"])
    for name in names:
        houses = (
            ["det-core", "det-node", "det-driver"]
            if name in ("det-engine", "det-searcher")
            else ["det-core"]
        )
        assert found[name]["needs"] == [*houses, name]
        assert found[name]["ran"] == [["pytest", f"packages/{name}/tests"]]
        assert {"packages/det-core", "packages/det-testing", f"packages/{name}"} <= set(
            found[name]["asked"]
        )
        assert [each for each in found[name]["asked"] if each.startswith("det-")] == []


CAMPAIGN = """
import json, noxfile

class Session:
    posargs, env = (), {}
    def __init__(self): self.ran, self.asked = [], []
    def run(self, *words, **options): self.ran += words
    def install(self, *words): self.asked += words

found = {}
for environment in ("torch", "keras"):
    session = found[environment] = Session()
    noxfile.chaos.func(session, environment)
print(json.dumps({name: [session.ran, session.asked] for name, session in found.items()}))
"""


@pytest.mark.process
def test_chaos_sessions_run_every_script_test_by_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CAMPAIGN], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (of_torch, torch), (of_keras, keras) = json.loads(done.stdout).values()
    files = {str(file.relative_to(ROOT)) for file in ROOT.glob("tests/**/test_script_chaos.py")}
    assert {each for each in of_torch + of_keras if each.endswith("test_script_chaos.py")} == files
    assert [each for each in files if "keras" in each] == [
        each for each in of_keras if each.startswith("tests/")
    ]
    assert "packages/det-keras[cpu]" in keras
    assert not [each for each in torch if "keras" in each]


DISTRIBUTIONS = {"sklearn": "scikit-learn", "tensorflow_estimator": "tensorflow"}


def test_each_page_is_run_by_a_session_that_has_what_it_needs() -> None:
    """A page whose module nobody installs is left out everywhere."""
    files = [ROOT / "noxfile.py", *ROOT.glob("packages/*/pyproject.toml")]
    installed = {
        name.removesuffix("-cpu").lower()
        for file in files
        for name in re.findall(r"\"([A-Za-z][\w.-]*)(?=[\"\[<>=! ])", file.read_text())
    }
    needed = {module: page for page in PAGES for module in needed_by(page)}
    assert {"jax", "xgboost", "sklearn", "transformers"} <= needed.keys()
    assert [
        f"{page.name} needs {module}"
        for module, page in needed.items()
        if DISTRIBUTIONS.get(module, module) not in installed
        and module.replace("_", "-") not in installed
    ] == []


def test_tests_that_the_noxfile_names_exist() -> None:
    """A test that is renamed must not stop the session that names it."""
    named = re.findall(r"\"(test_\w+\.py)::(test_\w+)\"", (ROOT / "noxfile.py").read_text())
    assert len(named) >= 5
    assert [
        f"{file}::{test}"
        for file, test in named
        if not any(f"def {test}(" in path.read_text() for path in ROOT.glob(f"tests/*/{file}"))
    ] == []

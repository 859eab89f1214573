"""What the sessions of the noxfile share: repeating, counting, skipping, installing, a watchdog."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nox")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.process

NOXFILE = """
import nox
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tools import sessions
from tools.sessions import recorded, run_tests

sessions.PAUSES = (0, 0)
nox.options.parallel = 2


@nox.session(venv_backend="none", allow_parallel=True, tags=["all"])
@recorded(keep=False)
def first(session):
    run_tests(session, "test_cases.py", marks="not slow")


@nox.session(venv_backend="none", allow_parallel=True, tags=["all"])
@recorded(keep=True)
def second(session):
    run_tests(session, "test_good.py", marks="not slow")


@nox.session(venv_backend="none", tags=["all"])
def table(session):
    sessions.print_table(session)


@nox.session(venv_backend="virtualenv")
def installs(session):
    sessions.install(session, "--no-index", "there-is-no-such-package")
"""
FLAKY = """
from pathlib import Path

def second_time(name):
    file = Path(name)
    known = file.exists()
    file.touch()
    return known
"""
CASE = """
def test_{name}():
    assert second_time("{name}")
"""
BROKEN = """
def test_broken():
    assert False
"""


class Project:
    """A repository with a noxfile, two files of tests and what the sessions share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "sessions.py", folder / "tools")
        self.write("noxfile.py", NOXFILE)
        self.write("conftest.py", 'pytest_plugins = ["tests.support.results"]\n')
        self.write("pytest.ini", "[pytest]\nmarkers =\n    process:\n    slow:\n    thorough:\n")
        self.write("test_good.py", "def test_good():\n    pass\n")
        self.write(".gitignore", ".nox/\n__pycache__/\n.pytest_cache/\nfirst_*\n")
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def cases(self, *names: str, more: str = "") -> None:
        """Write tests that fail the first time, and other tests."""
        self.write("test_cases.py", FLAKY + "".join(CASE.format(name=n) for n in names) + more)

    def nox(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        environ.pop("SESSIONS_RUN", None)
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
        return subprocess.run(
            [sys.executable, "-m", "nox", *arguments],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )

    def last_line(self) -> str:
        return (self.folder / ".nox/last-line.txt").read_text(encoding="utf-8").strip()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_a_test_that_passes_alone_is_named_flaky(project: Project) -> None:
    project.cases("first_a")
    done = project.nox("-t", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.last_line() == (
        "2 of 2 cases; the rest: nox -t full; flaky: test_cases.py::test_first_a"
    )
    assert re.search(r"^first +passed +1 +0 +\d+\.\d", done.stdout, re.MULTILINE)


def test_more_than_three_flaky_tests_fail_the_run(project: Project) -> None:
    project.cases("first_a", "first_b", "first_c", "first_d")
    done = project.nox("-t", "all")
    assert done.returncode == 1
    assert "more than 3 tests are flaky" in done.stdout + done.stderr


def test_many_failed_tests_are_not_repeated(project: Project) -> None:
    project.cases(*(f"first_{number}" for number in range(11)))
    done = project.nox("-t", "all")
    assert done.returncode == 1
    assert "once more, alone" not in done.stdout + done.stderr
    assert "failed: test_cases.py::test_first_7" in done.stdout


def test_a_test_that_fails_twice_has_failed(project: Project) -> None:
    project.cases("first_a", more=BROKEN)
    done = project.nox("-t", "all")
    assert done.returncode == 1
    assert "once more, alone" in done.stdout + done.stderr
    assert re.findall(r"^failed: (.*)$", done.stdout, re.MULTILINE) == [
        "test_cases.py::test_broken"
    ]
    assert project.last_line().endswith("flaky: test_cases.py::test_first_a")


def test_a_session_that_passed_for_this_tree_is_skipped(project: Project) -> None:
    project.cases()
    assert project.nox("-s", "second").returncode == 0
    again = project.nox("-s", "second", "table")
    assert again.returncode == 0
    assert project.last_line() == "1 cases"
    assert re.search(r"^second +passed before +1 +0", again.stdout, re.MULTILINE)
    # Another file is another tree, and `--again` asks for all.
    forced = project.nox("-s", "second", "table", "--", "--again")
    assert re.search(r"^second +passed +1 +0", forced.stdout, re.MULTILINE)
    project.write("test_good.py", "def test_other():\n    pass\n")
    changed = project.nox("-s", "second", "table")
    assert re.search(r"^second +passed +1 +0", changed.stdout, re.MULTILINE)


def test_a_session_that_failed_runs_again(project: Project) -> None:
    project.write("test_good.py", BROKEN)
    for _ in range(2):
        done = project.nox("-s", "second", "table")
        assert done.returncode == 1
        assert re.search(r"^second +FAILED +1 +1", done.stdout, re.MULTILINE)


def test_installing_is_tried_three_times(project: Project) -> None:
    done = project.nox("-s", "installs")
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("Next try in 0 seconds") == 2


SLEEPER = """
import subprocess, sys, time

def wait_for_ever():
    subprocess.Popen([sys.executable, "-c", "import time; print('inner', flush=True); time.sleep(600)"])
    time.sleep(600)

wait_for_ever()
"""


def test_the_watchdog_shows_what_hangs_and_ends_it(tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    command = [sys.executable, "-m", "tools.watchdog", "0.05", sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 124
    assert "did not end within 0.05 minutes" in done.stdout
    assert re.search(r"^ *\d+ +\d+ +\d+ .*python.* -c import time", done.stdout, re.MULTILINE)
    stacks = re.findall(r"^Stack of process \d+:$", done.stdout, re.MULTILINE)
    assert len(stacks) == 2
    assert "wait_for_ever" in done.stdout
    left = subprocess.run(["pgrep", "-f", str(script)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_the_watchdog_passes_a_status_on() -> None:
    command = [sys.executable, "-m", "tools.watchdog", "5", sys.executable, "-c", "exit(7)"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 7

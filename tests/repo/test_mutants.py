"""The campaign that tests the tests, on a module of three lines.

And its excuses, on the repository's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="comes with the sessions that make mutants")

from tools.mutants import excused, targets
from tools.mutation import mutants

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SOURCE = """
def shares(total: int, parts: int) -> list[int]:
    left = list[int]()
    left.extend(total // parts for _ in range(parts))
    if total % parts > 0:
        left[0] += total % parts
    return left
"""
THOROUGH = """
from shares import shares
def test_all_is_shared(): assert shares(7, 3) == [3, 2, 2] and shares(2, 2) == [1, 1] and shares(1, 2) == [1, 0]
"""
CARELESS = "from shares import shares\ndef test_shares(): assert shares(6, 3)[1] == 2\n"


class Project:
    """A repository with one module, its tests and a configuration of mutants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("src", "tests", "packages"):
            (path / name).mkdir()
        (path / "src" / "shares.py").write_text(SOURCE)
        self.configuration = path / "tests" / "mutants.toml"
        self.configure("")

    def configure(self, excuses: str) -> None:
        target = '[target.shares]\nsource = "src/shares.py"\ntests = ["tests/test_shares.py"]\n'
        self.configuration.write_text(target + textwrap.dedent(excuses))

    def run(self, tests: str, *arguments: str) -> tuple[int, str, str]:
        (self.path / "tests" / "test_shares.py").write_text(tests)
        done = subprocess.run(
            [sys.executable, "-m", "tools.mutants", *arguments],
            cwd=self.path,
            env={
                **os.environ,
                "PYTHONPATH": f"{self.path / 'src'}{os.pathsep}{ROOT}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


EXCUSE = """
    [[excused]]
    target = "shares"
    reason = "nothing is added where nothing is left"
    line = "if total % parts > 0:"
    becomes = ["if total % parts >= 0:", "if total % parts > -1:"]
"""


def test_each_mutant_is_unique_and_statements_are_dropped_too() -> None:
    made = [(mutant.before, mutant.after) for mutant in mutants(SOURCE)]
    assert len(made) == len(set(made))
    assert ("left.extend(total // parts for _ in range(parts))", "pass") in made
    assert ("if total % parts > 0:", "if total % parts >= 0:") in made
    assert ("left = list[int]()", "pass") not in made  # whoever runs it misses the name


def test_each_caught_exception_has_a_mutant_that_lets_it_through() -> None:
    source = (
        "try:\n    x\nexcept (ValueError, json.JSONDecodeError):\n    y\nexcept os.error:\n    z\n"
    )
    made = {mutant.after for mutant in mutants(source) if mutant.before.startswith("except")}
    assert made == {
        "except (StopAsyncIteration, json.JSONDecodeError):",
        "except (ValueError, StopAsyncIteration):",
        "except StopAsyncIteration:",
    }


def test_table_shows_that_all_unexcused_mutants_are_noticed(project: Project) -> None:
    project.configure(EXCUSE)
    status, said, problems = project.run(THOROUGH, "--only", "if")
    assert (status, problems) == (0, ""), said
    name, _, noticed, pardoned, left, share, *_ = said.splitlines()[-1].split()
    assert (name, noticed, pardoned, left, share) == ("shares", "3", "2", "0", "100.0%")
    assert (project.path / "src" / "shares.py").read_text() == SOURCE


def test_too_few_noticed_mutants_are_shown_and_fail(project: Project) -> None:
    status, said, problems = project.run(CARELESS, "--workers", "1", "--only", "left[0]")
    assert status == 1
    assert "src/shares.py:6\n  - left[0] += total % parts\n  + pass\n" in said
    assert "% of its mutants are noticed, and 95% have to be" in problems


def test_an_excuse_without_a_mutant_is_named(project: Project) -> None:
    project.configure(EXCUSE.replace('"if total % parts > -1:"', '"if total:"'))
    status, _, problems = project.run(THOROUGH, "--list")
    assert status == 1
    assert (
        problems
        == "shares: excused, but no mutant any more: if total % parts > 0:  ->  if total:\n"
    )


def test_unknown_target_and_excuse_without_target_are_named(project: Project) -> None:
    assert "no target shears in tests/mutants.toml: shares" in project.run(THOROUGH, "shears")[2]
    project.configure(EXCUSE.replace('target = "shares"', 'target = "shears"'))
    assert project.run(THOROUGH)[2] == "tests/mutants.toml: no target is called shears\n"


def test_tests_that_fail_by_themselves_are_shown(project: Project) -> None:
    status, _, problems = project.run("def test_nothing(): assert 1 == 2\n")
    assert status == 1
    assert problems.startswith("shares: the tests fail without a mutant:\n")
    assert "assert 1 == 2" in problems


def test_a_mutant_that_never_ends_is_noticed(project: Project) -> None:
    (project.path / "src" / "shares.py").write_text(
        "def first(items):\n    while not items:\n        items = [1]\n    return items[0]\n"
    )
    tests = (
        "from shares import first\ndef test_first(): assert first([]) == 1 and first([2]) == 2\n"
    )
    status, said, problems = project.run(tests, "--only", "while")
    assert (status, problems) == (0, ""), said


@pytest.mark.parametrize(
    "target", targets(ROOT / "tests" / "mutants.toml"), ids=lambda target: target.name
)
def test_every_excuse_has_an_existing_mutant_and_a_reason(target: object) -> None:
    assert all(excuse["reason"] for excuse in target.excused)
    _, stale = excused(target, mutants((ROOT / target.source).read_text()))
    assert stale == []

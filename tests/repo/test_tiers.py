"""Tests come in tiers.

Marks say which ones are in the first, and a guard holds them to it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CASES = """
import multiprocessing
import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest


def run():
    return subprocess.run([sys.executable, "-c", "pass"], check=True)


def test_unmarked_process():
    run()


def test_unmarked_fork():
    if os.fork() == 0:
        os._exit(0)


def test_unmarked_spawn():
    multiprocessing.get_context("spawn").Process(target=run).start()


def test_unmarked_socket():
    socket.create_server(("127.0.0.1", 0)).close()


def test_unmarked_and_swallowed():
    with suppress(RuntimeError):
        run()


def test_question_about_the_machine():
    subprocess.run(["uname"], check=True)


@pytest.mark.process
def test_marked():
    run()


@pytest.fixture
def child(processes):
    return run()


def test_marked_by_its_fixture(child):
    assert child.returncode == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(4))
def test_sampled(number):
    assert number < 2
"""


@pytest.mark.process
def test_guard_fails_unmarked_tests_that_start_processes(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "pytest_plugins = ["
        '"tests.support.processes", "tests.support.samples", "tests.support.tally"]\n'
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -m 'not thorough'\nmarkers =\n    process: starts one\n"
        "    sample: a few of its cases\n    thorough: a campaign\n"
    )
    (tmp_path / "test_cases.py").write_text(CASES)

    def result(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *arguments]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        return done.stdout

    found = result()
    passed = set(re.findall(r"^PASSED \S+::(\w+)", found, re.MULTILINE))
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", found, re.MULTILINE))
    assert failed == {
        "test_unmarked_process",
        "test_unmarked_fork",
        "test_unmarked_spawn",
        "test_unmarked_socket",
        "test_unmarked_and_swallowed",
    }
    assert passed - failed == {
        "test_question_about_the_machine",
        "test_marked",
        "test_marked_by_its_fixture",
        "test_sampled",
    }
    sampled = result("-m", "thorough", "-k", "sampled").splitlines()[-1]
    assert re.search("2 failed, .* deselected", sampled)
    tally = f"--tally={tmp_path / 'cases.txt'}"
    assert (
        result("-m", "not process and not thorough", tally).splitlines()[-1]
        == "8 of 10 cases; the rest: nox -t full"
    )
    assert (
        result("-m", "process", tally, "--counted").splitlines()[-1]
        == "10 of 10 cases; the rest: nox -t full"
    )


def test_workflow_runs_the_first_tier_and_all_full_lanes() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["nox"]["steps"][-1]["run"] == "nox"
    assert jobs["nox"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert jobs["full"]["steps"][-1]["run"] == "nox -t ${{ matrix.lane }}"
    run = (ROOT / ".ci/run").read_text(encoding="utf-8")
    lanes = re.findall(r'^"\$nox" -t (\w+)', run, re.MULTILINE)
    assert sorted(jobs["full"]["strategy"]["matrix"]["lane"]) == sorted(lanes)

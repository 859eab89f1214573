"""Tests come in tiers.

Marks say which ones are in the first, and a guard holds them to it.
"""

from __future__ import annotations

import json
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
        '"tests.support.processes", "tests.support.samples", "tests.support.results"]\n'
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
    results = tmp_path / "results.json"
    result("-m", "not process and not thorough", f"--results={results}")
    written = json.loads(results.read_text())
    assert set(written.pop("failed")) == {f"test_cases.py::{name}" for name in failed}
    assert written == {"chosen": 8, "all": 10, "status": 1}


def test_workflow_runs_the_gate_always_and_the_rest_nightly() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert jobs["gate"]["steps"][-1]["run"] == "bash .ci/run"
    assert "if" not in jobs["gate"]
    assert jobs["full"]["if"] == "github.event_name == 'schedule' || github.ref_type == 'tag'"
    assert jobs["full"]["steps"][-1]["run"] == "nox -t ${{ matrix.lane }}"
    release = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert "uses: ./.github/workflows/ci.yml" in release


def test_continuous_integration_runs_what_nox_does_by_default() -> None:
    run = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert '-m nox "$@"' in run
    assert "apt-get" not in run

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from det_driver.store import ExperimentRow, Run, Store, TrialRow, boot_id
from det_node.process import is_running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as store:
        yield store


@pytest.fixture
def experiment(store: Store) -> Iterator[ExperimentRow]:
    """An experiment whose lock is held, as it is written by nobody else."""
    made = store.experiments.create(name="digits", config="{}", metric="loss")
    with store.lock(made.id):
        yield made


@pytest.fixture
def another(store: Store) -> Iterator[Callable[[], ExperimentRow]]:
    """Make further experiments, whose locks are held likewise."""
    with ExitStack() as locks:

        def make(**settings: Any) -> ExperimentRow:
            made = store.experiments.create(**{"name": "x", "config": "{}", **settings})
            locks.enter_context(store.lock(made.id))
            return made

        yield make


@pytest.fixture
def trial(store: Store, experiment: ExperimentRow) -> TrialRow:
    return store.trials.create(experiment.id, 0, {"lr": 0.1}, seed=7)


@pytest.fixture
def run(store: Store, trial: TrialRow) -> Run:
    return store.runs.begin(trial.id)


@pytest.fixture
def leased() -> Callable[[Store], dict[str, int]]:
    """Tell which devices of this machine living processes hold, with their experiments."""

    def leased(store: Store) -> dict[str, int]:
        sql = "SELECT device, experiment_id, pid, born FROM leases WHERE boot = ? ORDER BY device"
        rows = store.index.attempt(lambda database: database.rows(sql, (boot_id(),))) or []
        return {
            device: experiment for device, experiment, pid, birth in rows if is_running(pid, birth)
        }

    return leased


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python script in a process of its own, with arguments; it is ended with the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()

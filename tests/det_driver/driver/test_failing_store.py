"""A search whose driver cannot write, at any of its writes, is resumed, and nothing of it is lost.

As SQLite tests itself: the search runs once and its writes are counted; then once for each of them, which fails (an I/O error;
a disk that is full from there on; the driver killed at it). A sample runs by default, `--kills=20` tries ten writes in each
of these ways, and `--kills=0` all of them (`nox -s chaos`).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from det_driver.config import load
from det_driver.driver import create
from det_driver.store import ExperimentState, Store, TrialState

# One slot, so that the order of the reports, on which promotions depend, is always the same.
SEARCH = """
name: search
entrypoint: model_def:Trial
reproducibility: {experiment_seed: 7}
max_restarts: 0
scheduling_unit: 4
min_checkpoint_period: {batches: 3}
min_validation_period: {batches: 5}
hyperparameters:
  lr: {type: log, minval: -4, maxval: -1}
searcher: {name: async_halving, metric: val_loss, max_trials: 6, max_length: 16, divisor: 2, num_rungs: 3, max_concurrent_trials: 2}
"""


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that strikes writes, built here."""
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class Struck:
    """One experiment, driven with faults until it is through."""

    def __init__(self, project: Any, faults: Path) -> None:
        self.project, self.faults = project, faults
        config = project.det.cwd / "search.yaml"
        config.write_text(SEARCH)
        with Store(project.det.home) as store:
            self.id = create(store, load(config).config, project.det.cwd)

    def resume(self, **env: str) -> subprocess.CompletedProcess[str]:
        """Drive it on, with faults where `env` names some."""
        strike = {"LD_PRELOAD": str(self.faults), **env} if env else {}
        env = {**self.project.environ(1), **strike}
        done: subprocess.CompletedProcess[str] = self.project.det(
            "resume", str(self.id), "--quiet", status=None, env=env
        )
        return done

    @property
    def row(self) -> Any:
        with Store.reader(self.project.det.home) as store:
            return store.experiments.get(self.id)

    def finish(self) -> Any:
        """Resume until it is complete, as a person would who has made room."""
        for _ in range(3):
            if self.row.state is ExperimentState.COMPLETED:
                break
            done = self.resume()
            assert done.returncode == 0, done.stdout + done.stderr
        outcome = self.project.outcome(self.id)
        outcome.check()
        return facts(outcome)


def facts(outcome: Any) -> Any:
    """What must not depend on the faults: trials, decisions, metrics (the loss of a one-weight model says its weight)."""
    told = {(type(event).__name__, event.trial, getattr(event, "length", None)) for event in outcome.events[1:]}
    trials = [
        (t.request, t.hparams, t.seed, str(t.state), t.batches, t.best_metric, t.best_batches) for t in outcome.trials
    ]
    return trials, sorted(told, key=str), [outcome.metrics[trial.id] for trial in outcome.trials]


@pytest.fixture
def undisturbed(project: Any, faults: Path, tmp_path: Path) -> tuple[Any, int]:
    """What the search comes to when nothing fails, and how often its driver writes."""
    struck, count = Struck(project, faults), tmp_path / "count"
    done = struck.resume(FAULT_COUNT=str(count))
    assert done.returncode == 0, done.stdout + done.stderr
    return struck.finish(), count.stat().st_size


def points(writes: int, kills: int) -> list[tuple[str, int]]:
    """All writes in each way with `--kills=0`, else some at random."""
    seed = int(os.environ.get("DET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"DET_CHAOS_SEED={seed}, {writes} writes")
    chance, every = random.Random(seed), range(1, writes + 1)
    count = max(1, min(kills // 2, writes)) if kills else writes
    return [(kind, at) for kind in ("eio", "enospc", "kill") for at in sorted(chance.sample(every, count))]


def test_a_search_whose_driver_cannot_write_is_paused_and_resumed_without_a_loss(
    project: Any, faults: Path, undisturbed: tuple[Any, int], pytestconfig: pytest.Config
) -> None:
    expected, writes = undisturbed
    for kind, at in points(writes, pytestconfig.getoption("kills")):
        struck = Struck(project, faults)
        done = struck.resume(FAULT_KIND=kind, FAULT_AT=str(at))
        said = f"{kind} at write {at} of {writes}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        print(said)
        if kind == "kill":
            assert done.returncode in (0, -signal.SIGKILL), said
        else:
            assert done.returncode in (0, 130), said
        with Store.reader(project.det.home) as store:
            assert not any(trial.state is TrialState.ERROR for trial in store.trials.list(struck.id)), said
        assert struck.finish() == expected, said


@pytest.mark.parametrize("at", [8, 16, 24])
def test_a_disk_that_is_full_before_the_first_run_pauses_the_experiment(project: Any, faults: Path, at: int) -> None:
    struck = Struck(project, faults)
    done = struck.resume(FAULT_KIND="enospc", FAULT_AT=str(at))
    assert done.returncode == 130, done.stdout + done.stderr
    assert "the disk is full" in done.stderr
    struck.finish()

"""One trial of a search is ended for good.

Its run is over, the searcher hears of it once, and the search goes on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from det_core.errors import StoreError
from det_driver.client import Client, Experiment
from det_driver.store import Store

SCRIPT = """
import os, signal, time
from det_core import core

with core.init() as context:
    number = context.info.trial.trial_id
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weight").write_text("1")
    context.train.report_validation_metrics(1, {"error": number})
    while os.path.exists(os.environ["HOLD"] + str(number)):
        time.sleep(0.05)
        if context.preempt.should_preempt() and "DEAF" not in os.environ:
            with context.checkpoint.store_path({"steps_completed": 2}) as (path, uuid):
                (path / "weight").write_text("2")
            raise SystemExit(0)
"""
CONFIG = {
    "entrypoint": "python3 train.py",
    "hyperparameters": {"lr": {"type": "double", "minval": 0.1, "maxval": 1}},
    "searcher": {
        "name": "random",
        "metric": "error",
        "max_trials": 3,
        "max_length": {"batches": 1},
        "max_concurrent_trials": 1,
    },
    "checkpoint_policy": "none",
}
Wait = Callable[..., None]


@pytest.fixture
def held(det: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Wait) -> Callable[..., Experiment]:
    """Start a search whose trials of these numbers hold until their file is gone.

    The first of them runs.
    """
    det.cwd.joinpath("train.py").write_text(SCRIPT)
    monkeypatch.setenv("DET_HOME", str(det.home))
    monkeypatch.setenv("DET_LEASE", "0")
    monkeypatch.setenv("HOLD", str(det.cwd / "hold-"))

    def start(*numbers: int, **config: Any) -> Experiment:
        for number in numbers:
            det.cwd.joinpath(f"hold-{number}").touch()
        experiment = Client().create_experiment({**CONFIG, **config}, det.cwd)
        wait_until(
            lambda: any(t.list_checkpoints() for t in experiment.list_trials()),
            "the first trial to have saved",
        )
        return experiment

    return start


def exits(home: Path, experiment: Experiment) -> int:
    """How often the searcher was told of the end of its first trial."""
    with Store.reader(home) as store:
        return sum(
            '"exited"' in str(e) and '"trial":0' in str(e)
            for e in store.journal.read(experiment.id)
        )


def test_killed_trial_is_canceled_and_the_others_are_trained(
    det: Any, held: Callable[..., Experiment]
) -> None:
    experiment = held(1)
    first = experiment.list_trials()[0]
    first.kill()
    assert first.state == "CANCELED"
    assert experiment.wait() == "COMPLETED"
    assert [trial.state for trial in experiment.list_trials()] == [
        "CANCELED",
        "COMPLETED",
        "COMPLETED",
    ]
    assert exits(det.home, experiment) == 1
    assert [each.batches for each in first.list_checkpoints()] == [1]
    with pytest.raises(StoreError, match="trial 1 is canceled already; nothing is left to cancel"):
        first.kill()


def test_one_that_is_canceled_saves_first(det: Any, held: Callable[..., Experiment]) -> None:
    experiment = held(1)
    said = det("cancel", "1", "--trial", "1")
    assert said.stdout == "trial 1 is canceled\n"
    assert experiment.wait() == "COMPLETED"
    assert 2 in [each.batches for each in experiment.list_trials()[0].list_checkpoints()]
    other = det("cancel", "7", "--trial", "2", status=2)
    assert "trial 2 is one of experiment 1, not of 7" in other.stderr


def test_experiment_whose_trials_are_all_canceled_is_canceled(
    held: Callable[..., Experiment],
) -> None:
    experiment = held(
        1, searcher={"name": "single", "metric": "error", "max_length": {"batches": 1}}
    )
    experiment.list_trials()[0].cancel()
    assert experiment.wait() == "CANCELED"


def test_next_driver_ends_the_canceled_run_of_a_killed_driver(
    det: Any, held: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    """It is told of once, whoever ends the run: here a run that does not listen."""
    monkeypatch.setenv("DEAF", "1")
    monkeypatch.setenv("DET_LEASE", "60")
    experiment = held(1)
    first = experiment.list_trials()[0]
    first.cancel()
    with Store.reader(det.home) as store:
        pid = store.experiments.get(experiment.id).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not store.experiments.driven(experiment.id), "the driver to be gone")
    with pytest.raises(StoreError, match="nobody drives experiment 1, which"):
        experiment.list_trials()[-1].kill()
    experiment.activate()
    assert experiment.wait() == "COMPLETED"
    assert [trial.state for trial in experiment.list_trials()] == [
        "CANCELED",
        "COMPLETED",
        "COMPLETED",
    ]
    assert exits(det.home, experiment) == 1

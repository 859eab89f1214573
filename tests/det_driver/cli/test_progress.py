"""What is known of a search while it runs, told by the hooks that the driver calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from det_driver.cli._console import share_done
from det_driver.cli._progress import SearchProgress
from det_driver.client._notebook import _standing


def trial(id: int, **facts: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "id": id,
            "hparams": {},
            "state": "RUNNING",
            "best_metric": None,
            "best_batches": None,
            "progress": 0.0,
            "batches": 0,
            **facts,
        }
    )


@pytest.fixture
def experiment() -> SimpleNamespace:
    """A search of 20 trials, of which three have been started."""
    searcher = SimpleNamespace(name="random", max_trials=20, metric="error", smaller_is_better=True)
    search = SimpleNamespace(progress=0.1, queued=0, waiting=0, ended=0, trials=3, resting={})
    config = SimpleNamespace(hyperparameters={}, searcher=searcher)
    return SimpleNamespace(id=1, name="digits", config=config, search=lambda: search)


@pytest.fixture
def progress(experiment: SimpleNamespace) -> SearchProgress:
    progress = SearchProgress()
    progress.det_experiment_started(experiment)
    for id in (1, 2, 3):
        progress.det_run_started(experiment, trial(id), SimpleNamespace(number=1, first_batch=0))
    return progress


def test_a_trial_starts_until_it_trains(
    progress: SearchProgress, experiment: SimpleNamespace
) -> None:
    """Importing a framework takes seconds, and is no training."""
    assert progress.starting
    assert progress.counted() == ["3 of 20 starting"]
    progress.det_trial_status(experiment, trial(1), "training")
    progress.det_metrics_reported(experiment, trial(2), "training", 10, {"loss": 0.5})
    assert not progress.starting
    assert progress.counted() == ["2 of 20 running", "1 starting"]
    assert [progress.settled(row) for row in progress.rows.values()] == [
        "running",
        "running",
        "starting",
    ]


def test_nothing_runs_any_more_once_the_experiment_has_ended(
    progress: SearchProgress, experiment: SimpleNamespace
) -> None:
    progress.det_trial_status(experiment, trial(1), "training")
    progress.det_experiment_finished(experiment, "PAUSED")
    assert {progress.settled(row) for row in progress.rows.values()} <= {"paused", "completed"}
    assert progress.counts() == {}
    assert progress.left(0.0) is None


def test_repeated_report_after_a_restart_keeps_progress(
    progress: SearchProgress, experiment: SimpleNamespace
) -> None:
    for batches in (10, 20, 20, 10):
        progress.det_metrics_reported(experiment, trial(1), "training", batches, {"loss": 0.5})
    assert progress.rows[1].batches == 20
    assert [parts[1] for _, parts in progress.happened if parts[0] == "trial 1"] == [
        "batch 10",
        "batch 20",
    ]


@pytest.mark.parametrize(
    ("progress", "state", "text"),
    [(0.0, "ERROR", ""), (0.25, "error", "25%"), (0.0, "active", "0%"), (1.0, "COMPLETED", "100%")],
)
def test_failure_before_any_report_shows_no_percentage(
    progress: float, state: str, text: str
) -> None:
    assert share_done(progress, state) == text


@pytest.mark.parametrize(
    ("progress", "text"), [(0.29, "29%"), (0.807, "80%"), (0.999, "99%"), (1.0, "100%")]
)
def test_percentage_is_the_same_everywhere_and_100_at_the_end(
    progress: float, text: str, experiment: SimpleNamespace
) -> None:
    """The page shows whole percentages that have been reached, too."""
    search = SearchProgress()
    search.search = SimpleNamespace(progress=progress)
    row = SimpleNamespace(id=1, name="x", state="ACTIVE", progress=progress, metric="error")
    summary = SimpleNamespace(experiment=row, trials={}, best_metric=None)
    assert share_done(progress, "active") == text
    assert _standing(summary) == f"experiment 1 (x) is active, {text}"
    assert search.status(0.0).startswith(f"{text} after ")


def test_best_value_has_its_own_batch(
    progress: SearchProgress, experiment: SimpleNamespace
) -> None:
    """The row of a trial may be later than the report."""
    row = trial(1, best_metric=0.25, best_batches=20)
    progress.det_metrics_reported(experiment, row, "validation", 10, {"error": 0.5})
    assert progress.best == (0.25, 1, 20, {})

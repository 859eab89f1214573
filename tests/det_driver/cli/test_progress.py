"""What is known of a search while it runs, told by the hooks that the driver calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from det_driver.cli._console import share_done
from det_driver.cli._progress import SearchProgress, numbers
from det_driver.cli._view import LineView
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


def report(
    view: SearchProgress,
    experiment: SimpleNamespace,
    row: SimpleNamespace,
    group: str,
    batches: int,
    metrics: dict[str, Any],
) -> None:
    """Call the hook of a view as a driver does whose trial has this row now."""
    experiment.trial = lambda id: row
    view.det_metrics_reported(experiment, row.id, group, batches, metrics)


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
    report(progress, experiment, trial(2), "training", 10, {"loss": 0.5})
    assert not progress.starting
    assert progress.counted() == ["2 of 20 running", "1 starting"]
    assert [progress.find_state(row) for row in progress.rows.values()] == [
        "running",
        "running",
        "starting",
    ]


def test_a_metric_that_is_a_long_list_is_printed_by_its_shape() -> None:
    metrics = {"batches": 3, "few": [1.0, 2.0], "many": [0.5] * 9, "grid": [[1, 2, 3]] * 10}
    assert numbers(metrics) == ["few=[1, 2]", "many=list of 9", "grid=list of 10 x 3"]


def test_a_trial_that_waits_is_not_printed_as_completed(
    experiment: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """It starts again when it is promoted."""
    line_view, view = LineView(), SearchProgress()
    run = SimpleNamespace(number=1, first_batch=0, reason=None)
    for each in (line_view, view):
        each.det_experiment_started(experiment)
        for state in ("WAITING", "COMPLETED"):
            each.det_run_started(experiment, trial(2), run)
            ended = trial(2, state=state, batches=64)
            each.det_run_finished(experiment, ended, run, "completed")
    waiting = "trial 2 reached batch 64 and waits for the searcher"
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "starts" not in line][1:] == [waiting, "trial 2 completed"]
    happened = [parts[0] for _, parts in view.happened]
    assert happened[-3:] == [waiting, "trial 2 starts", "trial 2 completed"]


@pytest.mark.parametrize(
    ("hparams", "line"), [({"lr": 0.1}, "trial 1 starts: lr=0.1"), ({}, "trial 1 starts")]
)
def test_a_trial_that_starts_has_its_hyperparameters(
    hparams: dict[str, Any],
    line: str,
    experiment: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script may have none."""
    view = LineView()
    view.det_experiment_started(experiment)
    run = SimpleNamespace(number=1, first_batch=0)
    view.det_run_started(experiment, trial(1, hparams=hparams), run)
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_nothing_runs_any_more_once_the_experiment_has_ended(
    progress: SearchProgress, experiment: SimpleNamespace
) -> None:
    progress.det_trial_status(experiment, trial(1), "training")
    progress.det_experiment_finished(experiment, "PAUSED")
    assert {progress.find_state(row) for row in progress.rows.values()} <= {"paused", "completed"}
    assert progress.counts() == {}
    assert progress.left(0.0) is None


def test_repeated_report_after_a_restart_keeps_progress(
    progress: SearchProgress, experiment: SimpleNamespace
) -> None:
    for batches in (10, 20, 20, 10):
        report(progress, experiment, trial(1), "training", batches, {"loss": 0.5})
    assert progress.rows[1].batches == 20
    assert [parts[1] for _, parts in progress.happened if parts[0] == "trial 1"] == [
        "batch 10",
        "batch 20",
    ]


class Clock:
    """A clock that tests set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("det_driver.cli._progress.time", clock)
    return clock


def test_of_many_reports_the_others_are_counted(
    clock: Clock, experiment: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search of a thousand reports in a second would fill the disk with them."""
    view = LineView()
    view.det_experiment_started(experiment)
    capsys.readouterr()
    for batches in range(1, 251):
        clock.now = 10 + batches // 201
        report(view, experiment, trial(1), "validation", batches, {"error": 0.5})
    view.det_experiment_finished(experiment, "COMPLETED")
    lines = capsys.readouterr().out.splitlines()
    first = [f"trial 1 batch {batches} validation: error=0.5" for batches in range(1, 101)]
    assert lines[:101] == [*first, f"100 more reports; see them with: det metrics {experiment.id}"]
    assert lines[-1] == "trial 1 batch 250 validation: error=0.5"
    for batches in range(251, 311):
        report(view, experiment, trial(1), "validation", batches, {"error": 0.5})
    view.det_experiment_finished(experiment, "COMPLETED")
    assert capsys.readouterr().out.splitlines()[50:] == [
        f"10 more reports; see them with: det metrics {experiment.id}"
    ]


@pytest.fixture
def alone(clock: Clock, experiment: SimpleNamespace) -> SearchProgress:
    """A single trial of 24 batches, whose run failed after batch 6, of which each took 2 s."""
    experiment.config.searcher.name = "single"
    progress = SearchProgress()
    progress.det_experiment_started(experiment)
    progress.det_run_started(experiment, trial(1), SimpleNamespace(number=1, first_batch=0))
    for batches in range(1, 7):
        clock.now += 2
        row = trial(1, batches=batches, progress=batches / 24)
        report(progress, experiment, row, "training", batches, {"loss": 0.5})
    assert progress.left(clock.now) == pytest.approx(18 * 2)
    return progress


@pytest.mark.parametrize("first_batch", [0, 4, 6])
@pytest.mark.parametrize("says", [True, False])
def test_time_left_after_a_restart_counts_what_is_repeated(
    alone: SearchProgress,
    experiment: SimpleNamespace,
    clock: Clock,
    first_batch: int,
    says: bool,
) -> None:
    """The run says that it trains, or reports alone. Its speed is never that of a batch back."""
    clock.now += 60
    row = trial(1, batches=6, progress=6 / 24)
    alone.det_run_started(experiment, row, SimpleNamespace(number=2, first_batch=first_batch))
    clock.now += 100 if says else 0
    assert alone.left(clock.now) is None
    if says:
        alone.det_trial_status(experiment, row, "training")
    for batches in range(first_batch + 1, 24):
        clock.now += 3
        row = trial(1, batches=max(6, batches), progress=max(6, batches) / 24)
        report(alone, experiment, row, "training", batches, {"loss": 0.5})
        assert alone.speed == pytest.approx(1 / 3)
        assert alone.left(clock.now) == pytest.approx((24 - batches) * 3)
        assert alone.rows[1].done >= 6 / 24


def test_time_left_after_a_resume_counts_what_is_repeated(
    clock: Clock, experiment: SimpleNamespace
) -> None:
    """Its driver is another one, which has the trial's row."""
    experiment.config.searcher.name = "single"
    row = trial(1, batches=6, progress=6 / 24)
    progress = SearchProgress([row])
    progress.det_experiment_started(experiment)
    progress.det_run_started(experiment, row, SimpleNamespace(number=2, first_batch=2))
    for batches in (3, 4):
        clock.now += 3
        report(progress, experiment, row, "training", batches, {"loss": 0.5})
    assert progress.left(clock.now) == pytest.approx(20 * 3)


def test_time_left_is_unknown_once_it_has_passed(alone: SearchProgress, clock: Clock) -> None:
    """Such as while a driver waits for a node."""
    assert alone.left(clock.now + 35) == pytest.approx(1)
    assert alone.left(clock.now + 37) is None


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
    report(progress, experiment, row, "validation", 10, {"error": 0.5})
    assert progress.best == (0.25, 1, 20, {})

from __future__ import annotations

import pytest

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, Run, Store, TrialRow


def test_runs_are_numbered_from_one_and_counted(store: Store, trial: TrialRow) -> None:
    first = store.runs.begin(trial.id)
    store.runs.end(first.id, "ERROR")
    second = store.runs.begin(trial.id, from_batches=40)

    assert (first.number, first.first_batch, second.number, second.first_batch) == (1, 0, 2, 40)
    assert store.runs.list(trial.id) == [store.runs.get(first.id), second]
    found = store.trials.get(trial.id)
    assert (found.runs, found.batches, found.started) == (2, 40, first.started)


def test_a_run_has_a_place_for_its_logs_that_moves_with_the_home(
    store: Store, trial: TrialRow, run: Run
) -> None:
    assert (
        run.log_dir
        == store.experiment_dir(trial.experiment_id) / "trials" / str(trial.id) / "run-1"
    )


def test_a_run_ends_with_a_word(store: Store, run: Run) -> None:
    store.runs.end(run.id, "COMPLETED")

    ended = store.runs.get(run.id)
    assert ended.outcome == "COMPLETED"
    assert ended.ended is not None
    assert ended.ended >= run.started


def test_run_left_open_by_its_driver_is_lost_when_another_begins(
    store: Store, trial: TrialRow, run: Run
) -> None:
    store.runs.begin(trial.id)

    assert [each.outcome for each in store.runs.list(trial.id)] == ["LOST", None]


def test_missing_runs_and_trials_are_named(store: Store, experiment: ExperimentRow) -> None:
    with pytest.raises(StoreError, match=r"^no trial 4; create it before its runs$"):
        store.runs.begin(4)
    with pytest.raises(StoreError, match=r"^no run 4; begin it before it ends$"):
        store.runs.end(4, "ERROR")
    with pytest.raises(StoreError, match=r"^no run 4; det show lists a trial's runs$"):
        store.runs.get(4)

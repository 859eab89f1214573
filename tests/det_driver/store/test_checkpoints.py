from __future__ import annotations

import pytest

from det_core.errors import StoreError
from det_driver.store import CheckpointRow, CheckpointState, Run, Store, TrialRow


def record(store: Store, run: Run, uuid: str, batches: int) -> CheckpointRow:
    return store.checkpoints.record(
        uuid, run.trial_id, run.id, batches, storage='{"type":"directory"}', size=10
    )


def test_a_checkpoint_comes_back_as_it_was_recorded(store: Store, run: Run) -> None:
    made = store.checkpoints.record(
        "u1",
        run.trial_id,
        run.id,
        30,
        storage="s3://b/u1",
        size=123,
        metadata={"a": [1]},
        framework="torch 2.13",
    )

    assert store.checkpoints.get("u1") == made
    assert (made.storage, made.size, made.metadata, made.framework) == (
        "s3://b/u1",
        123,
        {"a": [1]},
        "torch 2.13",
    )
    assert made.state is CheckpointState.COMPLETED
    assert made.metric is None


def test_a_checkpoint_shows_the_live_validation_of_its_position(store: Store, run: Run) -> None:
    record(store, run, "u1", 30)
    store.metrics.report(run.trial_id, run.id, "validation", 30, {"loss": 0.5, "accuracy": 0.9})
    store.metrics.report(run.trial_id, run.id, "validation", 30, {"loss": 0.25, "accuracy": 0.95})

    found = store.checkpoints.get("u1")

    assert (found.validation, found.metric) == ({"loss": 0.25, "accuracy": 0.95}, 0.25)


def test_the_newest_whole_checkpoint_is_the_trials_latest(
    store: Store, trial: TrialRow, run: Run
) -> None:
    for uuid, batches in [("u1", 30), ("u2", 60), ("u3", 90)]:
        record(store, run, uuid, batches)
    assert store.trials.get(trial.id).latest_checkpoint == "u3"

    store.checkpoints.mark_deleted("u1")
    assert store.trials.get(trial.id).latest_checkpoint == "u3"
    store.checkpoints.mark_deleted("u3", left=4)
    assert store.trials.get(trial.id).latest_checkpoint == "u2"
    store.checkpoints.mark_deleted("u2")
    assert store.trials.get(trial.id).latest_checkpoint is None

    found = store.checkpoints.list(trial_id=trial.id)
    assert [(each.uuid, str(each.state), each.size) for each in found] == [
        ("u1", "DELETED", 0),
        ("u2", "DELETED", 0),
        ("u3", "PARTIALLY_DELETED", 4),
    ]


def test_listing_is_by_trial_or_experiment(store: Store, trial: TrialRow, run: Run) -> None:
    record(store, run, "u1", 30)
    other = store.trials.create(trial.experiment_id, 1, {}, seed=0)
    record(store, store.runs.begin(other.id), "u0", 10)
    store.checkpoints.mark_deleted("u1")

    def listed(**filters: object) -> list[str]:
        return [each.uuid for each in store.checkpoints.list(**filters)]  # type: ignore[arg-type]

    assert listed(experiment_id=trial.experiment_id) == ["u1", "u0"]
    assert listed(trial_id=other.id) == ["u0"]
    with pytest.raises(TypeError, match=r"give trial_id or experiment_id"):
        listed()


def test_a_uuid_may_be_cut_short_while_it_stays_clear(store: Store, run: Run) -> None:
    for uuid in ("ab", "abc1", "abd2", "x%"):
        record(store, run, uuid, 1)

    assert store.checkpoints.get("abc").uuid == "abc1"
    assert store.checkpoints.get("ab").uuid == "ab"
    assert store.checkpoints.get("x").uuid == "x%"
    with pytest.raises(
        StoreError,
        match=r"^several checkpoints begin with 'a', such as ab and abc1; give more of it$",
    ):
        store.checkpoints.get("a")
    for missing in ("%", "abe", ""):
        with pytest.raises(StoreError, match=rf"^no checkpoint '{missing}'; det checkpoint list"):
            store.checkpoints.get(missing)


def test_checkpoints_that_cannot_be_are_refused(store: Store, run: Run) -> None:
    record(store, run, "u1", 30)

    with pytest.raises(
        StoreError,
        match=r"^checkpoint u1 is recorded already; give each checkpoint a uuid of its own$",
    ):
        record(store, run, "u1", 60)
    with pytest.raises(StoreError, match=r"^no trial 9; create it before its checkpoints$"):
        store.checkpoints.record("u2", 9, run.id, 1, storage="", size=0)
    with pytest.raises(StoreError, match=r"^no checkpoint 'u7'; "):
        store.checkpoints.mark_deleted("u7")

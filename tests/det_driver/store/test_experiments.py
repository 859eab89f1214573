from __future__ import annotations

from pathlib import Path

import pytest

from det_core.errors import ExperimentBusy, StoreError
from det_driver.store import ExperimentRow, ExperimentState, Store, TrialState


def test_an_experiment_comes_back_as_it_was_created(store: Store) -> None:
    made = store.experiments.create(
        name="digits",
        config='{"name": "digits"}',
        entrypoint="model_def:Trial",
        metric="accuracy",
        smaller_is_better=False,
        description="first",
        labels=["a", "ü"],
    )

    assert store.experiments.get(made.id) == made
    assert (made.labels, made.smaller_is_better, made.state) == (("a", "ü"), False, ExperimentState.ACTIVE)
    assert made.created > 0
    assert made.started is None


def test_creating_makes_an_empty_directory(store: Store, experiment: ExperimentRow) -> None:
    directory = store.experiment_dir(experiment.id)

    assert directory == store.home / "experiments" / "1"
    assert [*directory.iterdir()] == []
    assert store.code_dir(experiment.id) == directory / "code"


def test_a_missing_experiment_is_named_with_the_home(store: Store) -> None:
    with pytest.raises(StoreError, match=rf"^no experiment 12; det list shows those in {store.home}$"):
        store.experiments.get(12)
    with pytest.raises(StoreError, match=r"^no experiment 12;"):
        store.experiments.update(12, name="x")
    with pytest.raises(StoreError, match=r"^no experiment 12;"):
        store.experiments.delete(12)
    with pytest.raises(StoreError, match=r"^no experiment 12;"), store.lock(12):
        pass


def test_an_update_changes_what_it_names_and_nothing_else(store: Store, experiment: ExperimentRow) -> None:
    store.experiments.update(experiment.id, state=ExperimentState.PAUSED, progress=0.5, pid=7, boot="b", labels=["z"])

    found = store.experiments.get(experiment.id)

    assert (found.state, found.progress, found.pid, found.boot) == (ExperimentState.PAUSED, 0.5, 7, "b")
    assert found.labels == ("z",)
    assert (found.name, found.created) == (experiment.name, experiment.created)


def test_an_update_of_a_made_up_column_is_refused(store: Store, experiment: ExperimentRow) -> None:
    with pytest.raises(TypeError, match=r"cannot change .'colour'.; give some of"):
        store.experiments.update(experiment.id, colour="red")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"cannot change nothing"):
        store.experiments.update(experiment.id)


def test_listing_is_newest_first_and_leaves_out_the_archived(store: Store) -> None:
    for name in ("digits", "MNIST digits", "text"):
        store.experiments.create(name=name, config="{}")
    store.experiments.update(3, state=ExperimentState.COMPLETED, archived=True)

    def listed(**filters: object) -> list[int]:
        return [found.id for found in store.experiments.list(**filters)]  # type: ignore[arg-type]

    assert listed() == [2, 1]
    assert listed(archived=None) == [3, 2, 1]
    assert listed(archived=True) == [3]
    assert listed(archived=None, limit=2) == [3, 2]


def test_summaries_count_trials_by_state_and_name_the_best(store: Store) -> None:
    for smaller in (True, False, True):
        store.experiments.create(name="x", config="{}", metric="m", smaller_is_better=smaller)
    for id in (1, 2):
        for request, value in enumerate([0.5, float("nan"), 0.25]):
            trial = store.trials.create(id, request, {}, seed=0)
            run = store.runs.begin(trial.id)
            store.metrics.report(trial.id, run.id, "validation", 10, {"m": value})
    store.trials.update(1, state=TrialState.COMPLETED)

    found = {each.experiment.id: each for each in store.experiments.summaries(store.experiments.list())}

    assert found[1].trials == {TrialState.COMPLETED: 1, TrialState.QUEUED: 2}
    assert (found[1].best_metric, found[1].best_trial) == (0.25, 3)
    assert (found[2].best_metric, found[2].best_trial) == (0.5, 4)
    assert (found[3].trials, found[3].best_metric, found[3].best_trial) == ({}, None, None)


def test_deleting_leaves_no_trace_and_its_id_is_not_used_again(store: Store, experiment: ExperimentRow) -> None:
    trial = store.trials.create(experiment.id, 0, {}, seed=0)
    run = store.runs.begin(trial.id)
    store.metrics.report(trial.id, run.id, "training", 1, {"loss": 1.0})
    store.checkpoints.record("u", trial.id, run.id, 1, storage="{}", size=1)
    store.journal.append(experiment.id, "{}")
    (store.experiment_dir(experiment.id) / "code").mkdir()

    store.experiments.delete(experiment.id)

    assert not store.experiment_dir(experiment.id).exists()
    assert [*store.metrics.read(trial_id=trial.id)] == []
    assert [*store.journal.read(experiment.id)] == []
    assert store.experiments.create(name="next", config="{}").id == experiment.id + 1


def test_an_experiment_that_a_driver_holds_is_not_deleted(store: Store, experiment: ExperimentRow) -> None:
    with store.lock(experiment.id), pytest.raises(ExperimentBusy):
        store.experiments.delete(experiment.id)

    assert store.experiments.get(experiment.id) == experiment


def test_a_directory_that_was_left_behind_is_never_shared(tmp_path: Path) -> None:
    """A store that was lost and begun anew must not mix its experiments with the files of old ones."""
    (tmp_path / "experiments" / "1").mkdir(parents=True)

    with Store(tmp_path) as store:
        assert [store.experiments.create(name="x", config="{}").id for _ in range(2)] == [2, 3]

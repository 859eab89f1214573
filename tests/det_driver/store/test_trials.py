from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, Store, TrialRow, TrialState


def test_a_trial_comes_back_as_it_was_created(store: Store, experiment: ExperimentRow) -> None:
    hparams = {"lr": 1e-3, "layers": [64, 10], "nested": {"opt": "sgd"}, "big": 2**70, "none": None}

    made = store.trials.create(experiment.id, 5, hparams, seed=2**31 - 1, source_checkpoint="u")

    assert store.trials.get(made.id) == made
    assert (made.request, made.hparams, made.seed, made.source_checkpoint) == (
        5,
        hparams,
        2**31 - 1,
        "u",
    )
    assert (made.state, made.batches, made.restarts, made.runs) == (TrialState.QUEUED, 0, 0, 0)


def test_a_missing_trial_or_experiment_is_named(store: Store) -> None:
    with pytest.raises(
        StoreError, match=r"^no trial 3; det show EXPERIMENT lists an experiment's trials$"
    ):
        store.trials.get(3)
    with pytest.raises(StoreError, match=r"^no trial 3;"):
        store.trials.update(3, restarts=1)
    with pytest.raises(StoreError, match=r"^no experiment 9; det list shows those in "):
        store.trials.create(9, 0, {}, seed=0)


def test_a_request_has_one_trial_in_an_experiment(
    store: Store, trial: TrialRow, another: Callable[[], ExperimentRow]
) -> None:
    with pytest.raises(StoreError, match=r"^experiment 1 has a trial 0 of its searcher already$"):
        store.trials.create(trial.experiment_id, trial.request, {}, seed=0)

    other = another()
    assert store.trials.create(other.id, trial.request, {}, seed=0).id != trial.id


def test_an_update_changes_what_it_names(store: Store, trial: TrialRow) -> None:
    store.trials.update(
        trial.id, state=TrialState.ERROR, restarts=2, exit_reason="out of memory", ended=5.0
    )

    found = store.trials.get(trial.id)

    assert (found.state, found.restarts, found.exit_reason, found.ended) == (
        TrialState.ERROR,
        2,
        "out of memory",
        5.0,
    )
    assert found.hparams == trial.hparams


def test_a_reason_that_is_no_utf8_is_kept_legibly(store: Store, trial: TrialRow) -> None:
    store.trials.update(trial.id, exit_reason="no file b\udcff.pt")

    assert store.trials.get(trial.id).exit_reason == "no file b\\udcff.pt"


def test_listing_is_in_order_of_creation_or_by_metric(
    store: Store, experiment: ExperimentRow
) -> None:
    for request, value in enumerate([0.5, None, 0.25]):
        trial = store.trials.create(experiment.id, request, {}, seed=0)
        if value is not None:
            store.metrics.report(
                trial.id, store.runs.begin(trial.id).id, "validation", 1, {"loss": value}
            )
    store.trials.update(2, state=TrialState.RUNNING)

    assert [trial.id for trial in store.trials.list(experiment.id)] == [1, 2, 3]
    assert [trial.id for trial in store.trials.list(experiment.id, best_first=True)] == [3, 1, 2]
    assert [trial.id for trial in store.trials.list(experiment.id, best_first=True, limit=1)] == [3]


def test_ended_states_are_those_that_never_run_again() -> None:
    assert {str(state) for state in TrialState if state.ended} == {
        "COMPLETED",
        "ERROR",
        "CANCELED",
        "INVALID_HP",
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(hparams=st.dictionaries(st.text(), json_values, max_size=4))
def test_any_json_comes_back_equal(
    another: Callable[[], ExperimentRow], store: Store, hparams: dict[str, object]
) -> None:
    experiment = another()

    assert store.trials.create(experiment.id, 0, hparams, seed=0).hparams == hparams


def test_source_checkpoints_of_an_experiment_are_known(
    store: Store, experiment: ExperimentRow
) -> None:
    store.trials.create(experiment.id, 0, {}, 1)
    store.trials.create(experiment.id, 1, {}, 1, source_checkpoint="abc")
    assert store.trials.sources(experiment.id) == {"abc"}


def test_trials_have_numbers_of_their_own_in_a_home(
    store: Store, another: Callable[[], ExperimentRow]
) -> None:
    """Commands take the number of a trial alone."""
    first, second = another(), another()
    made = [
        store.trials.create(each.id, request, {}, 0).id
        for request in range(40)
        for each in (first, second)
    ]

    assert len({*made}) == 80
    assert made[:2] == [1, 2]
    assert {store.trials.get(id).experiment_id for id in made[::2]} == {first.id}
    with Store.reader(store.home) as reader:
        assert [reader.trials.get(id).experiment_id for id in made[:2]] == [first.id, second.id]


def test_numbers_are_taken_in_blocks_that_survive_what_is_undone(
    store: Store, experiment: ExperimentRow
) -> None:
    """So that the index is asked now and then only: 20 times for ten thousand trials."""
    with store.transaction():
        made = [store.trials.create(experiment.id, request, {}, 0).id for request in range(10_000)]
    assert made == [*range(1, 10_001)]
    assert len(store._databases.held().rows("SELECT 1 FROM blocks")) <= 20

    def undo() -> None:
        with store.transaction():
            store.trials.create(experiment.id, 10_000, {}, 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        undo()
    assert store.trials.create(experiment.id, 10_000, {}, 0).id not in made

"""What a driver knows of its experiment.

How far it is, where each trial stands, until when it trains, which one is best.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_transactions import RANDOM, run, state_of

from det_core import Plugins
from det_core.config import ExperimentConfig, parse, to_json
from det_core.errors import DetError
from det_core.train.host import Target
from det_core.train.schedule import NEVER
from det_driver.driver._search import TrialValidated, decode_event
from det_driver.driver._state import State
from det_driver.search import Exit
from det_driver.store import ExperimentState, Store, TrialState

HALVING = {
    "name": "async_halving",
    "metric": "loss",
    "num_rungs": 2,
    "max_trials": 4,
    "max_length": 40,
    "divisor": 4,
}
PBT = {
    "name": "pbt",
    "metric": "loss",
    "population_size": 2,
    "num_rounds": 2,
    "length_per_round": 10,
}
PBT |= {"replace_function": {"truncate_fraction": 0.5}, "explore_function": {}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def again(state: State) -> State:
    """What the next driver finds."""
    return State(state.store, state.id, state.plugins)


def reach(state: State, live: Any, loss: float = 1.0, **metrics: Any) -> None:
    """Let a trial report the validation of its target."""
    with state.transaction():
        state.validated(live, live.active, 10, {"loss": loss, **metrics}, live.plan.until)
    live.active = None


def end(state: State, live: Any, reason: Exit = Exit.COMPLETED) -> None:
    with state.transaction():
        state.exit(
            live, reason, TrialState.ERROR if reason is Exit.ERRORED else TrialState.COMPLETED
        )


# From one driver to the next


def test_an_experiment_without_a_searcher_is_refused(store: Store) -> None:
    made = store.experiments.create(name="x", config=to_json(ExperimentConfig(entrypoint="m:T")))
    with pytest.raises(
        DetError, match=r"^the experiment has no searcher; add one to its configuration$"
    ):
        State(store, made.id, Plugins.installed())


def test_custom_searcher_is_found_in_the_code_of_the_experiment(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = {"name": "custom", "entrypoint": "search_of_their_own:Mine", "metric": "loss"}
    config = parse({"entrypoint": "m:T", "hyperparameters": {}, "searcher": own}).config
    made = store.experiments.create(name="x", config=to_json(config))
    store.code_dir(made.id).mkdir()
    store.code_dir(made.id).joinpath("search_of_their_own.py").write_text(
        "from det_driver.search import Searcher\n"
        "class Mine(Searcher):\n"
        "    def __init__(self, config, hyperparameters, seed): pass\n"
        "    start = validated = exited = progress = None\n"
    )
    assert State(store, made.id, Plugins.installed()).search.plans == {}
    monkeypatch.delitem(sys.modules, "search_of_their_own")


def test_the_next_driver_knows_of_each_trial_what_this_one_knew(store: Store) -> None:
    state = state_of(store, RANDOM | {"source_checkpoint_uuid": "abc"})
    run(state)
    end(state, state.trials[1], Exit.ERRORED)
    assert [live.begun for live in state.trials.values()] == [True, False, False]
    found = again(state)
    assert [(live.state, live.begun, live.source) for live in found.trials.values()] == [
        (TrialState.RUNNING, True, "abc"),
        (TrialState.ERROR, False, "abc"),
        (TrialState.QUEUED, False, "abc"),
    ]
    assert [*found.open] == [*state.open] == [0, 2]
    assert (len(found.queue), found.queue.first) == (2, found.trials[0])


def test_takeover_queues_idle_trials_and_keeps_running_ones(store: Store) -> None:
    """Trials whose target is reached wait for their searcher."""
    state = state_of(store, HALVING | {"max_concurrent_trials": 3})
    waits, goes_on, runs = run(state), run(state), run(state)
    reach(state, waits)
    found = again(state)
    found.trials[runs.plan.request].active = runs.active
    with found.transaction():
        found.requeue_trials()
    states = {trial.request: trial.state for trial in store.trials.list(state.id)}
    assert [states[live.plan.request] for live in (waits, goes_on, runs)] == [
        TrialState.WAITING,
        TrialState.QUEUED,
        TrialState.RUNNING,
    ]


def test_takeover_marks_closed_trials_to_be_ended_not_queued(store: Store) -> None:
    state = state_of(store)
    reach(state, run(state))
    found = again(state)
    with found.transaction():
        found.requeue_trials()
    assert [*found.closed] == [found.trials[0]]
    assert store.trials.list(state.id)[0].state is TrialState.RUNNING
    assert found.queue.first is found.trials[1]


# What is done, and what rests


def test_progress_of_a_failed_search_is_what_its_trials_reached(store: Store) -> None:
    """Before that, ended trials count as done, failed ones included."""
    state = state_of(store)
    state.trials[0].progress = 0.5
    assert state.progress == pytest.approx(0.5 / 3)
    reach(state, run(state))
    end(state, state.trials[0])
    assert state.progress == pytest.approx(1 / 3)
    end(state, state.trials[1], Exit.ERRORED)
    assert state.progress == pytest.approx(2 / 3)  # it goes on, and what has ended is done
    state.target_state = ExperimentState.CANCELED
    assert state.progress == pytest.approx(1 / 3)
    state.target_state = None
    end(state, state.trials[2], Exit.ERRORED)
    assert state.progress == pytest.approx(1 / 3)


def test_failed_trials_count_as_progress_after_a_success(store: Store) -> None:
    state = state_of(store)
    end(state, state.trials[0], Exit.ERRORED)
    end(state, state.trials[1], Exit.USER_STOPPED)
    end(state, state.trials[2])
    assert state.progress == 1.0


def test_observers_see_counts_of_trials_in_each_state(store: Store) -> None:
    state = state_of(store, HALVING | {"max_concurrent_trials": 3})
    waits, _ = run(state), run(state)
    reach(state, waits)
    end(state, state.trials[2])
    view = state.view.search()
    assert (view.trials, view.running, view.queued, view.ended, view.waiting) == (4, 1, 1, 1, 1)
    assert view.resting == {waits.id: "waiting", state.trials[3].id: "queued"}
    assert (view.progress, view.rungs) == (state.progress, state.search.rungs)
    assert state.view.storage().root == store.home / "checkpoints"


def test_ended_trial_leaves_open_set_and_queue_with_its_reason(store: Store) -> None:
    state = state_of(store)
    with state.transaction():
        state.exit(state.trials[0], Exit.ERRORED, TrialState.ERROR, "oh")
    end(state, state.trials[1], Exit.USER_STOPPED)
    assert [*state.open] == [2]
    assert [live.state for live in state.trials.values()] == [
        *(TrialState.ERROR, TrialState.COMPLETED),
        TrialState.QUEUED,
    ]
    assert len(state.queue) == 1
    rows = store.trials.list(state.id)
    assert [(row.state, row.exit_reason) for row in rows[:2]] == [
        (TrialState.ERROR, "oh"),
        (TrialState.COMPLETED, "user_stopped"),
    ]
    assert all(row.ended is not None for row in rows[:2])


def test_a_trial_that_is_promoted_is_queued_again(store: Store) -> None:
    state = state_of(store, HALVING | {"max_concurrent_trials": 1})
    for loss in (1.0, 0.0, 2.0, 3.0):
        live = run(state)
        reach(state, live, loss)
        if not live.plan.runnable:
            with state.transaction():
                state.set_waiting(live, TrialState.WAITING)
            assert live.state is TrialState.WAITING
    assert [trial.state for trial in store.trials.list(state.id)] == [
        TrialState.WAITING,
        TrialState.QUEUED,
        *[TrialState.WAITING] * 2,
    ]
    assert state.queue.first is state.trials[1]


# Until when


@pytest.mark.parametrize(
    ("length", "target"),
    [
        ({"max_length": 10}, Target(n=10, unit="batches")),
        ({"max_length": {"epochs": 3}}, Target(n=3, unit="epochs")),
        ({"max_length": None}, Target(n=NEVER, unit="batches")),
    ],
)
def test_a_trial_trains_until_its_searcher_says(store: Store, length: Any, target: Target) -> None:
    state = state_of(store, RANDOM | length)
    assert state.target(state.trials[0]) == target
    assert state.target(state.trials[0], best=True).best
    state.trials[0].plan.closed = True
    assert state.target(state.trials[0]) == Target(n=None, unit="batches")


@pytest.mark.parametrize(
    ("length", "metrics", "heard"),
    [
        ({"max_length": 10}, {}, 7),
        ({"max_length": 5}, {}, 4),  # one that does not complete the target is before it
        ({"max_length": {"records": 10}}, {}, 7),
        ({"max_length": {"epochs": 10}}, {"epochs": 3.9}, 3),
        ({"max_length": {"epochs": 3}}, {"epochs": 3.9}, 2),
        ({"max_length": {"epochs": 3}}, {"epochs": math.nan}, 0),
        ({"max_length": None}, {}, 7),
    ],
)
def test_a_searcher_hears_in_its_own_unit_where_a_validation_was(
    store: Store, length: Any, metrics: dict[str, float], heard: int
) -> None:
    state = state_of(store, RANDOM | length)
    live = run(state)
    assert live.active.validated_at < 0  # as a validation before training is at 0
    with state.transaction():
        state.validated(live, live.active, 7, {"loss": 1.0, **metrics}, None)
    event = decode_event([each.data for each in store.journal.read(state.id)][-1])
    assert isinstance(event, TrialValidated)
    assert (event.length, event.batches) == (heard, 7)
    assert live.active.validated_at == 7


def test_validation_without_a_reachable_target_has_its_length(store: Store) -> None:
    """The length is computed from the batches of the validation."""
    state = state_of(store, RANDOM | {"max_length": None})
    live = run(state)
    with state.transaction():
        state.validated(live, live.active, 7, {"loss": 1.0}, NEVER)
    assert b'"length":7' in [each.data for each in store.journal.read(state.id)][-1]


# From where


def save(state: State, live: Any, uuid: str) -> None:
    state.store.checkpoints.record(uuid, live.id, live.active.run.id, 10, storage="{}", size=0)


def test_a_copy_starts_from_the_latest_checkpoint_of_its_source(store: Store) -> None:
    state = state_of(store, PBT)
    best, worst = run(state), run(state)
    for live in (best, worst):
        save(state, live, f"of {live.plan.request}")
    reach(state, best, 0.0)
    reach(state, worst, 1.0)
    assert state.trials[2].source == state.row(state.trials[2]).source_checkpoint == "of 0"


@pytest.mark.parametrize("saved", [True, False])
def test_trials_warm_start_from_a_trial_of_another_experiment(tmp_path: Path, saved: bool) -> None:
    with Store(tmp_path) as store:
        state = state_of(store)
        other = run(state)
        if saved:
            save(state, other, "of another")
    with Store(tmp_path) as store:
        if saved:
            assert (
                state_of(store, RANDOM | {"source_trial_id": other.id}).trials[0].source
                == "of another"
            )
            return
        message = f"^searcher.source_trial_id is {other.id}, a trial without a checkpoint$"
        with pytest.raises(DetError, match=message):
            state_of(store, RANDOM | {"source_trial_id": other.id})


# Which is best


@pytest.mark.parametrize(
    ("smaller", "value", "best"),
    [
        *((True, 0.5, True), (True, 1.0, False), (True, 2.0, False)),
        *((False, 0.5, False), (False, 1.0, False), (False, 2.0, True)),
        *((True, "none", False), (True, None, False)),
    ],
)
def test_a_validation_is_the_best_where_none_was_as_good(
    store: Store, smaller: bool, value: Any, best: bool
) -> None:
    state = state_of(store, RANDOM | {"smaller_is_better": smaller})
    live = run(state)
    assert state.is_best({"loss": 7.0})
    with state.transaction():
        assert state.validated(live, live.active, 5, {"loss": 1.0}, None).best
    assert state.is_best({"loss": value}) is best
    assert state.is_best({"other": 0.0}) is False
    assert state.is_best({"loss": 1.0}, again=True)
    assert state.is_best({"loss": value}, again=True) is (best or value == 1.0)


def test_where_there_is_no_metric_each_validation_is_the_best(store: Store) -> None:
    state = state_of(store, RANDOM | {"metric": ""})
    live = run(state)
    for batches in (5, 6):
        with state.transaction():
            assert state.validated(live, live.active, batches, {"loss": 1.0}, None).best


def test_run_progress_is_the_furthest_report_in_any_order(store: Store) -> None:
    state = state_of(store)
    live = run(state)
    for batches in (5, 3):
        with state.transaction():
            state.reported(live, live.active, "training", batches, {"loss": 1.0})
    assert live.active.progressed_to == 5


# What waits, and what is to stop


def test_queued_trials_show_preparing_while_they_prepare(store: Store) -> None:
    state = state_of(store, RANDOM | {"max_trials": 3, "max_concurrent_trials": 0})
    running, *queued = state.trials.values()
    run(state)
    queued[0].state = TrialState.PAUSED
    state.show_preparing(False)
    assert queued[0].state is TrialState.PAUSED, "where nothing is prepared, nothing is written"
    for preparing, shown in [
        (True, TrialState.PREPARING),
        (True, TrialState.PREPARING),
        (False, TrialState.QUEUED),
    ]:
        state.show_preparing(preparing)
        assert [live.state for live in (running, *queued)] == [TrialState.RUNNING, shown, shown]
        assert [state.row(live).state for live in queued] == [shown, shown]
    queued[0].state = TrialState.PAUSED
    state.show_preparing(False)
    assert queued[0].state is TrialState.PAUSED, "nor where nothing is any more"


def test_run_is_stopping_when_its_validation_reaches_the_target(store: Store) -> None:
    state = state_of(store)
    live = run(state)
    assert live.active.stopping is False
    with state.transaction():
        state.validated(live, live.active, 5, {"loss": 1.0}, None)
    assert live.active.stopping is False
    with state.transaction():
        state.validated(live, live.active, 10, {"loss": 1.0}, live.plan.until)
    assert live.active.stopping is True

"""What a driver hears is decided and committed as one.

Or nothing of it has happened, in the store or in memory.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from det_core import Plugins, hookimpl
from det_core.config import parse, to_json
from det_core.errors import StoreError, StoreUnwritable
from det_driver.driver._search import SearchStarted
from det_driver.driver._state import State
from det_driver.driver._transactions import rarely_collected
from det_driver.search import Exit
from det_driver.store import Store, TrialState

RANDOM = {
    "name": "random",
    "metric": "loss",
    "max_trials": 3,
    "max_length": 10,
    "max_concurrent_trials": 2,
}


def state_of(
    store: Store, searcher: dict[str, Any] = RANDOM, plugins: Plugins | None = None, **settings: Any
) -> State:
    space = settings.pop("hyperparameters", {"lr": {"type": "double", "minval": 0, "maxval": 1}})
    config = parse(
        {
            "entrypoint": "model_def:Trial",
            "hyperparameters": space,
            "searcher": searcher,
            **settings,
        }
    ).config
    made = store.experiments.create(name="x", config=to_json(config), metric="loss")
    held = ExitStack()
    held.callback(store.close)
    held.enter_context(store.lock(made.id))
    store.close = held.close  # type: ignore[method-assign]  # the lock is held until then
    state = State(store, made.id, plugins or Plugins.installed())
    with state.transaction():
        state.append_event(SearchStarted())
    return state


def run(state: State) -> Any:
    """Begin a run of the trial whose turn it is."""
    live = state.queue.first
    with state.transaction():
        state.begin(live, state.store.slots.lease(state.id, 1, ["cpu:0", "cpu:1"]), 0)
    return live


def remembered(state: State) -> Any:
    """What is in memory of a search, as one can compare it."""
    trials = {r: (t.plan, t.restarts, t.progress, t.queued) for r, t in state.trials.items()}
    closed = [live.plan.request for live in state.closed]
    facts = (
        trials,
        closed,
        len(state.queue),
        list(state.open),
        state.best,
        state.search.searcher.state(),
        [*state.search.rungs],
    )
    return copy.deepcopy(facts)


def stored(state: State) -> Any:
    journal = [event.data for event in state.store.journal.read(state.id)]
    metrics = list(state.store.metrics.read(experiment_id=state.id))
    return journal, state.store.trials.list(state.id), metrics


def test_failed_transaction_changes_neither_store_nor_memory(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        state = state_of(store)
        first = run(state)
        before, active, done = (remembered(state), stored(state)), first.active, []

        def decide() -> None:
            with state.transaction():
                state.after_commit(lambda: done.append("acted"))
                assert state.validated(first, active, 10, {"loss": 1.0}, 10).n is None
                state.exit(first, Exit.COMPLETED, TrialState.COMPLETED)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            decide()
        assert (remembered(state), stored(state)) == before
        assert state.trials[0] is first
        assert first.active is active
        assert not done
        with state.transaction():
            state.validated(first, active, 10, {"loss": 1.0}, 10)
        assert state.best == 1.0


@contextmanager
def full(state: State) -> Iterator[None]:
    """The experiment's database may not grow any more, as on a full disk."""
    connection = state.store._databases.held()._connection
    (most,) = connection.execute("PRAGMA max_page_count").fetchone()
    connection.execute("PRAGMA max_page_count = 1")  # which SQLite takes for as many as there are
    yield
    connection.execute(f"PRAGMA max_page_count = {most}")


def test_failed_commit_changes_nothing_and_raises_in_the_driver(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        state = state_of(store)
        first = run(state)
        before, done, decided = (remembered(state), stored(state)), [], []

        def decide() -> None:
            with full(state), state.transaction():
                state.after_commit(lambda: done.append("acted"))
                state.apply(lambda: done.append("adopted"))
                state.validated(first, first.active, 10, {"loss": 1.0, "note": "x" * 10**6}, 10)
                decided.append("all of it")

        with pytest.raises(StoreUnwritable):
            decide()
        assert decided
        assert (remembered(state), stored(state)) == before
        with state.transaction():
            state.after_commit(lambda: done.append("next"))
        with state.transaction():
            pass
        assert done == ["next"]


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (StoreUnwritable("the disk is full"), "the disk is full"),
        (ZeroDivisionError("oh"), "event 1 of the journal"),
    ],
)
def test_full_disk_is_reported_even_if_the_store_is_unreadable(
    tmp_path: Path, failure: Exception, raised: str
) -> None:
    def decide(state: State) -> None:
        with state.transaction():
            raise failure

    with Store(tmp_path) as store:
        state = state_of(store)
        store._databases.held()._connection.execute("UPDATE journal SET event = 'unreadable'")
        with pytest.raises(StoreError, match=raised):
            decide(state)


class Observer:
    """Looks, when it is told, at what another reader of the store sees."""

    def __init__(self, home: Path) -> None:
        self.home, self.seen, self.trials, self.started = home, [], [], 0

    @hookimpl
    def det_experiment_started(self) -> None:
        self.started += 1

    @hookimpl
    def det_metrics_reported(self, experiment: Any, trial: Any, batches: int) -> None:
        self.trials.append(trial)
        with (
            Store(self.home) as store,
            store.transaction(),
        ):  # which it could not, within the driver's own
            found = [m.batches for m in store.metrics.read(trial_id=trial.id)]
            self.seen.append((batches, found, trial.batches))


def test_observers_are_told_after_the_commit_and_outside_of_it(tmp_path: Path) -> None:
    plugins, observer = Plugins.installed(), Observer(tmp_path)
    plugins.register(observer, "looks")
    with Store(tmp_path) as store:
        state = state_of(store, plugins=plugins)
        live = run(state)
        with state.transaction():
            state.reported(live, live.active, "training", 5, {"loss": 1.0})
        with state.transaction():
            state.observe("det_experiment_started")
        with state.transaction():
            state.reported(live, live.active, "training", 6, {"loss": 1.0})
    assert observer.seen == [(5, [5], 5), (6, [5, 6], 6)]
    assert observer.started == 1


def test_no_row_is_read_for_observers_that_need_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search has thousands of reports in a second."""
    seen: list[tuple[int, int, int]] = []

    class Ids:
        @hookimpl
        def det_metrics_reported(self, experiment: Any, trial_id: int, batches: int) -> None:
            seen.append((trial_id, batches, experiment.trial(trial_id).batches))

    def reported(state: State, lives: list[Any], batches: int) -> None:
        with state.group():
            for live in lives:
                with state.transaction():
                    state.reported(live, live.active, "training", batches, {"loss": 1.0})

    plugins = Plugins.installed()
    plugins.register(Ids(), "ids")
    with Store(tmp_path) as store:
        state = state_of(store, plugins=plugins)
        lives = [run(state), run(state)]
        read: list[Any] = []
        find = store.trials.read
        monkeypatch.setattr(store.trials, "read", lambda *each: (read.append(each), find(*each))[1])
        reported(state, lives, 5)
        assert read == []
        assert seen == [(live.id, 5, 5) for live in lives]
        plugins.register(Observer(tmp_path), "looks")
        reported(state, lives, 6)
        assert len(read) == 1


def test_an_observer_sees_a_run_that_ended_as_it_was_committed(tmp_path: Path) -> None:
    class Sees:
        seen: ClassVar[list[tuple[int, Any, str]]] = []

        @hookimpl
        def det_run_finished(self, trial: Any, run: Any, outcome: str) -> None:
            self.seen.append((trial.id, (run.id, run.outcome, run.ended is not None), outcome))

    plugins = Plugins.installed()
    plugins.register(Sees(), "sees")
    with Store(tmp_path) as store:
        state = state_of(store, plugins=plugins)
        live = run(state)
        ended = live.active.run.id
        with state.group():
            with state.transaction():
                state.observe("det_run_finished", of=live.id, ended=ended, outcome="COMPLETED")
            with state.transaction():  # told of the run, and not of the moment
                store.runs.end(ended, "COMPLETED")
        assert Sees.seen == [(live.id, (ended, "COMPLETED", True), "COMPLETED")]


@pytest.mark.parametrize("epochs", [math.nan, math.inf, "many", None])
def test_a_time_that_is_no_number_ends_no_search(tmp_path: Path, epochs: Any) -> None:
    with Store(tmp_path) as store:
        state = state_of(store, RANDOM | {"max_length": {"epochs": 10}})
        live = run(state)
        with state.transaction():
            state.validated(live, live.active, 7, {"loss": 1.0, "epochs": epochs}, None)
        assert state.trials[0].plan.runnable


def test_records_are_counted_by_the_batch_size_of_the_trial(tmp_path: Path) -> None:
    sizes = {"global_batch_size": {"type": "categorical", "vals": [64]}}
    with Store(tmp_path) as store:
        state = state_of(
            store, RANDOM | {"max_length": {"records": 100_000}}, hyperparameters=sizes
        )
        live = run(state)
        with state.transaction():
            state.validated(live, live.active, 500, {"loss": 1.0}, None)
        journal = [event.data for event in store.journal.read(state.id)]
        assert b'"length":32000' in journal[-1]


def test_a_time_metric_of_the_trials_own_says_when_it_is_over(tmp_path: Path) -> None:
    searcher = {
        "name": "adaptive_asha",
        "metric": "loss",
        "time_metric": "seconds",
        "max_time": 8,
        "max_trials": 2,
    }
    with Store(tmp_path) as store:
        state = state_of(
            store, searcher | {"divisor": 4, "max_rungs": 1}, min_validation_period={"batches": 10}
        )
        live = run(state)
        assert (
            state.target(live).n == state.target(live, best=True).n > 10**9
        )  # who knows how many batches that takes
        with state.transaction():
            assert (
                state.validated(live, live.active, 8, {"loss": 1.0, "seconds": 2.5}, None).n > 10**9
            )
        with state.transaction():
            assert (
                state.validated(live, live.active, 20, {"loss": 1.0, "seconds": 8.5}, None).n
                is None
            )


def test_canceling_makes_no_trials_that_never_were(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        state = state_of(store)
        for live in list(state.trials.values()):
            with state.transaction():
                state.exit(live, Exit.CANCELED, TrialState.CANCELED)
        assert len(state.trials) == 2
        again = State(store, state.id, Plugins.installed())
        assert len(again.trials) == 2


def test_batch_is_committed_before_any_after_commit_action(tmp_path: Path) -> None:
    plugins, observer = Plugins.installed(), Observer(tmp_path)
    plugins.register(observer, "looks")
    with Store(tmp_path) as store, Store.reader(tmp_path) as reader:
        state = state_of(store, plugins=plugins)
        live, done = run(state), []
        active = live.active
        with state.group():
            for batches in (5, 6):
                with state.transaction():
                    state.reported(live, active, "training", batches, {"loss": 1.0})
                    state.after_commit(lambda batches=batches: done.append(batches))
            assert active.progressed_to == 6  # what the next word is judged by
            assert not done
            assert not observer.seen
            assert not [*reader.metrics.read(trial_id=live.id)]
        assert done == [5, 6]
        assert [seen for _, seen, _ in observer.seen] == [[5, 6], [5, 6]]
        assert (
            observer.trials[0] is observer.trials[1]
        )  # looked up once for all that is told of one commit


def test_after_commit_actions_precede_all_observers(tmp_path: Path) -> None:
    """They are grouped, so that no observer delays them."""
    plugins, order = Plugins.installed(), []

    class Notes:
        @hookimpl
        def det_metrics_reported(self, batches: int) -> None:
            order.append(f"observed {batches}")

    @contextmanager
    def together() -> Iterator[None]:
        order.append("[")
        yield
        order.append("]")

    plugins.register(Notes(), "notes")
    with Store(tmp_path) as store:
        state = state_of(store, plugins=plugins)
        live = run(state)
        state.together = together
        with state.group():
            for batches in (5, 6):
                with state.transaction():
                    state.reported(live, live.active, "training", batches, {"loss": 1.0})
                    state.after_commit(partial(order.append, f"answered {batches}"))
    assert order == ["[", "answered 5", "answered 6", "]", "observed 5", "observed 6"]


def test_a_turn_that_fails_in_a_group_undoes_itself_alone(tmp_path: Path) -> None:
    def fail(state: State, first: Any, done: list[str]) -> None:
        with state.transaction():
            state.exit(first, Exit.COMPLETED, TrialState.COMPLETED)
            state.after_commit(lambda: done.append("second"))
            state.apply(lambda: done.append("second"))
            raise ZeroDivisionError

    with Store(tmp_path) as store:
        state = state_of(store)
        first, done = run(state), []
        with state.group():
            with state.transaction():
                state.validated(first, first.active, 10, {"loss": 1.0}, 10)
                state.after_commit(lambda: done.append("first"))
            before = remembered(state)
            with pytest.raises(ZeroDivisionError):
                fail(state, first, done)
            assert remembered(state) == before
        assert done == ["first"]
        assert [each.batches for each in store.metrics.read(trial_id=first.id)] == [10]
        assert store.trials.get(first.id).state is TrialState.RUNNING


def test_failed_commit_of_a_batch_runs_no_after_commit_action(tmp_path: Path) -> None:
    def lose(state: State, live: Any, done: list[str]) -> None:
        with state.group():
            with state.transaction():
                state.reported(live, live.active, "training", 5, {"loss": 1.0})
                state.after_commit(lambda: done.append("answered"))
            raise StoreUnwritable("the disk is full")

    plugins, observer = Plugins.installed(), Observer(tmp_path)
    plugins.register(observer, "looks")
    with Store(tmp_path) as store:
        state = state_of(store, plugins=plugins)
        live, done = run(state), []
        with pytest.raises(StoreUnwritable):
            lose(state, live, done)
        with state.transaction():
            state.after_commit(lambda: done.append("next"))
        assert done == ["next"]
        assert not observer.seen
        assert not [*store.metrics.read(trial_id=live.id)]


def test_garbage_collection_is_rarer_only_while_driving() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 11, 12)
        with rarely_collected():
            young, *older = gc.get_threshold()
        assert young > 700
        assert older == [11, 12]
        assert gc.get_threshold() == (700, 11, 12)
    finally:
        gc.set_threshold(*before)

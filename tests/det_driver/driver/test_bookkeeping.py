"""What the driver keeps so that an event costs the same in a search of any size."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from det_core import Plugins
from det_core.config import parse, to_json
from det_driver.driver._search import SearchStarted, TrialPlan
from det_driver.driver._state import State
from det_driver.driver._trials import LiveTrial, Queue
from det_driver.search import Exit
from det_driver.store import Store, TrialState


def live(request: int) -> LiveTrial:
    return LiveTrial(id=request, plan=TrialPlan(request, {}, 0, None, until=5, wanted=True))


def test_queue_is_in_creation_order_and_omits_closed_trials():
    queue, trials = Queue(), [live(n) for n in range(5)]
    for trial in reversed(trials):
        queue.add(trial)
        queue.add(trial)
    assert len(queue) == 5
    trials[0].plan.closed = True
    assert queue.first is trials[1]
    queue.discard(trials[1])
    assert queue.first is trials[2]
    queue.add(trials[1])
    assert queue.first is trials[1]
    trials[1].plan.closed = trials[2].plan.closed = trials[3].plan.closed = trials[
        4
    ].plan.closed = True
    assert queue.first is None
    assert len(queue) == 0


@contextmanager
def search_of(store: Store, trials: int, at_once: int = 0) -> Iterator[State]:
    searcher = {"name": "random", "metric": "loss", "max_trials": trials, "max_length": 10}
    searcher["max_concurrent_trials"] = at_once
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    config = parse(
        {"entrypoint": "model_def:Trial", "hyperparameters": space, "searcher": searcher}
    ).config
    made = store.experiments.create(name="x", config=to_json(config), metric="loss")
    with store.lock(made.id):
        state = State(store, made.id, Plugins.installed())
        with state.transaction():
            state.append_event(SearchStarted())
        yield state


@contextmanager
def counted(state: State) -> Iterator[Counter[str]]:
    """Count the steps that SQLite takes inside, and the functions of Python that are called."""
    count: Counter[str] = Counter()
    steps: list[int] = []
    connections = [
        each._connection for each in (state.store._databases.held(), state.store.index.database)
    ]
    for connection in connections:
        connection.set_progress_handler(partial(steps.append, 1), 1)
    sys.setprofile(lambda frame, what, of: count.update(["calls"] if what == "call" else ()))
    try:
        yield count
    finally:
        sys.setprofile(None)
        for connection in connections:
            connection.set_progress_handler(None, 0)
        count["steps"] = len(steps)


def work_of_events(state: State, count: int) -> Counter[str]:
    """Return what taking up trials, a validation of each and its end cost.

    It is the least of several times.
    """
    found = []
    for _ in range(3):
        with counted(state) as work:
            for _ in range(count):
                first = state.queue.first
                lease = state.store.slots.lease(state.id, 1, ["cpu:0", "cpu:1"])
                with state.transaction():
                    run = state.begin(first, lease, 0)
                with state.transaction():
                    assert (
                        state.validated(
                            first, first.active, 10, {"loss": 0.5 + first.plan.request}, 10
                        ).n
                        is None
                    )
                assert state.best == 0.5
                first.active = None
                state.store.slots.release(lease)
                with state.transaction():
                    state.exit(state.closed.popleft(), Exit.COMPLETED, TrialState.COMPLETED)
                    state.store.runs.end(run.id, "completed")
        found.append(work)
    return Counter({what: min(each[what] for each in found) for what in ("calls", "steps")})


def test_event_cost_does_not_grow_with_the_number_of_trials(tmp_path):
    """An event costs the same in searches of 200 and of 10,000 trials."""
    with Store(tmp_path / "small") as store, search_of(store, 200) as state:
        small = work_of_events(state, 10)
    with Store(tmp_path / "large") as store, search_of(store, 10_000) as state:
        large = work_of_events(state, 10)
    print(small, large)
    assert large["calls"] <= small["calls"]
    assert large["steps"] <= 1.05 * small["steps"]


def instructions(work: Callable[[], object]) -> int:
    """Count the instructions of Python that are executed, in functions that are called, too."""
    count = 0

    def trace(frame: Any, event: str, of: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_progress_cost_does_not_grow_with_ended_trials(tmp_path):
    """It is asked for every second."""
    found = []
    with Store(tmp_path) as store:
        for ended in (5, 200):
            with search_of(store, 1000, at_once=2) as state:
                for _ in range(ended):
                    with state.transaction():
                        state.exit(state.queue.first, Exit.COMPLETED, TrialState.COMPLETED)
                found.append(instructions(lambda: state.progress))
                assert state.progress == ended / 1000
    assert found[0] == found[1] > 0


@pytest.mark.slow
def test_a_trial_that_gets_ever_better_takes_no_more_memory(tmp_path):
    """Of all its validations, the driver keeps what is still of interest."""
    with Store(tmp_path) as store, search_of(store, 1) as state:
        first = state.queue.first
        with state.transaction():
            state.begin(first, state.store.slots.lease(state.id, 1, ["cpu:0"]), 0)

        def validate(numbers: range) -> None:
            for n in numbers:
                with state.transaction():
                    state.validated(first, first.active, n, {"loss": 1 / n}, None)

        validate(range(1, 400))  # until what is put off and kept now and then has been
        tracemalloc.start()
        try:
            validate(range(400, 500))
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            validate(range(500, 3500))
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert state.best == 1 / 3499
    assert after - before < 60_000, "each that is kept takes more than 40 bytes"

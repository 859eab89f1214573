"""What a driver does with its engine.

Whose turn it is, what machines it takes, what it asks again, and what it gives back.
"""

from __future__ import annotations

import errno
import math
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, Signals
from types import SimpleNamespace
from typing import Any

import pytest
from tests.det_driver.driver.test_transactions import RANDOM, state_of

from det_core import Plugins, hookimpl
from det_core.errors import StoreUnwritable
from det_core.train.environ import WorkerEnv
from det_core.train.host import Outcome
from det_driver.driver import DriverSettings, _fleet
from det_driver.driver._fleet import Fleet, StopRequest
from det_driver.driver._search import SearchSteered
from det_driver.driver._starting import Starter, scratch_of
from det_driver.driver._state import State
from det_driver.engines import Ended, Engine, Node, NodeJoined, RunSpec
from det_driver.provenance import write
from det_driver.search import Exit
from det_driver.store import ExperimentState, Store, _slots
from det_node.process import note_process


class RecordingEngine(Engine):
    """Records the calls of its methods, and starts nothing."""

    def __init__(self) -> None:
        super().__init__(lambda event: None)
        self.calls: list[tuple[Any, ...]] = []
        self.specs: list[RunSpec] = []
        self.there = [Node("")]
        self.refuses: Exception | None = None
        self.leaving: set[str] = set()
        self.why = ""

    def nodes(self) -> list[Node]:
        return self.there

    def explain_wait(self) -> str:
        return self.why

    def is_leaving(self, node: str) -> bool:
        return node in self.leaving

    def want(self, runs: int, slots: int) -> None:
        self.calls.append(("want", runs, slots))
        if self.refuses:
            raise self.refuses

    def start(self, spec: RunSpec) -> None:
        if self.refuses:
            raise self.refuses
        self.specs.append(spec)

    def signal(self, run: int, number: Signals) -> None:
        self.calls.append(("signal", run, number))

    def preempt(self, run: int, reason: str) -> None:
        self.calls.append(("preempt", run, reason))

    def acknowledge(self, run: int, link: int, number: int) -> None:
        self.calls.append(("acknowledge", run, link, number))

    def acknowledge_end(self, run: int) -> None:
        self.calls.append(("acknowledge_end", run))

    def end_runs(self) -> None:
        self.calls.append(("let go",))

    def take_calls(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


class Waits:
    """An observer that notes which runs started, and for what trials wait."""

    def __init__(self) -> None:
        self.why: list[str] = []
        self.runs: list[tuple[int, int]] = []

    @hookimpl
    def det_run_started(self, experiment: Any, trial: Any, run: Any) -> None:
        self.runs.append((trial.id, run.id))

    @hookimpl
    def det_trials_waiting(self, experiment: Any, why: str) -> None:
        self.why.append(why)


class Bench:
    """A fleet of two slots, a search of four trials, and a clock that is set by hand."""

    def __init__(
        self, store: Store, slots: int = 2, searcher: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.waits, plugins = Waits(), Plugins.installed()
        plugins.register(self.waits, "waits")
        searcher = searcher or RANDOM | {"max_trials": 4, "max_concurrent_trials": 0}
        self.state: State = state_of(store, searcher, plugins, **settings)
        self.settings = DriverSettings(home=store.home, slots=slots)
        self.ended: list[Ended] = []
        self.again()

    def again(self) -> None:
        """Begin as another driver does."""
        self.engine = RecordingEngine()
        self.fleet = Fleet(self.engine, self.state, self.settings, self.ended.append)

    def start(self) -> list[int]:
        """Start what is due.

        Return the trials of the runs that the engine was told to start, by their numbers.
        """
        before = len(self.engine.specs)
        self.fleet.start_due(Starter(self.state, self.settings, None))
        return [self.fleet.running[spec.run_id].plan.request for spec in self.engine.specs[before:]]

    def end(self, run: int, **how: Any) -> Any:
        live, active = self.fleet.release_run(Ended(run, how.pop("status", 0), **how))
        self.state.queue.add(live)
        return active


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(_fleet, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


# Whose turn it is


def test_trials_start_in_creation_order_while_slots_are_free(bench: Bench) -> None:
    assert bench.start() == [0, 1]
    assert [spec.devices for spec in bench.engine.specs] == [("cpu:0",), ("cpu:1",)]
    assert [live.active.run.id for live in bench.fleet.running.values() if live.active] == [1, 2]
    assert bench.state.store.slots.waiting() == [bench.state.id]
    assert bench.engine.take_calls() == [("want", 2, 1)]
    assert bench.start() == []
    assert bench.engine.take_calls() == []  # it waits until something happens
    assert bench.waits.runs == [(1, 1), (2, 2)]


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_trials_run_than_max_concurrent_trials(store: Store, limit: int) -> None:
    """Adaptive ASHA opens a trial in each bracket, however few may run at once."""
    searcher = {
        "name": "adaptive_asha",
        "metric": "loss",
        "max_trials": 64,
        "max_length": 64,
        "mode": "conservative",
        "divisor": 2,
    }
    bench = Bench(store, slots=8, searcher={**searcher, "max_concurrent_trials": limit})
    opened = len(bench.state.queue)
    assert opened > limit
    assert bench.start() == list(range(limit))
    assert bench.start() == []
    bench.state.trials[0].plan.closed = True
    bench.end(1)
    assert bench.start() == [limit]
    assert len(bench.fleet.running) == limit
    assert len(bench.state.queue) == opened - limit - 1
    bench.fleet.poll()
    assert bench.engine.take_calls()[-1] == ("want", 0, 1)


def test_a_trial_goes_on_from_its_latest_checkpoint(bench: Bench) -> None:
    bench.start()
    with bench.state.transaction():
        bench.state.store.checkpoints.record("abc", 1, 1, 7, storage="", size=1, framework="fake")
    bench.end(1)
    assert bench.start() == [0]
    found = WorkerEnv.read(dict(bench.engine.specs[-1].variables))
    assert found is not None
    assert (found.latest_checkpoint, found.steps_completed) == ("abc", 7)


def test_a_run_that_ends_gives_its_slot_to_the_next_trial(bench: Bench) -> None:
    bench.start()
    bench.state.trials[0].plan.closed = True
    scratch = Path(scratch_of(bench.fleet.running[1].active.run))  # type: ignore[union-attr]
    (scratch / "left").mkdir(parents=True)
    active = bench.end(1)
    assert (active.lease.devices, bench.state.trials[0].active) == (("cpu:0",), None)
    assert not scratch.exists()
    assert bench.start() == [2]
    assert bench.engine.specs[-1].devices == ("cpu:0",)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_slot_is_kept_for_a_moment_by_its_experiment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """Another of the same priority waits for it no longer than that."""
    other = bench.state.store.slots
    for module in (_fleet, _slots):
        monkeypatch.setattr(module, "TURN_SECONDS", math.inf if keeps else 0.0)
    assert bench.start() == [0, 1]
    # The one who has used less is first.
    other.set_share(99, 42, 1.0, "ann")
    assert other.leases(99, 1, ["cpu:0", "cpu:1"]) == []
    bench.state.trials[0].plan.closed = True
    bench.end(1)
    assert bench.start() == [2] * keeps
    assert [bool(lease) for lease in other.leases(99, 1, ["cpu:0", "cpu:1"])] == [True] * (
        not keeps
    )


def test_a_slot_that_a_better_priority_needs_is_not_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = bench.state.store.slots
    monkeypatch.setattr(_fleet, "TURN_SECONDS", math.inf)
    assert bench.start() == [0, 1]
    other.set_share(99, 1, 1.0)
    assert other.leases(99, 1, ["cpu:0", "cpu:1"]) == []
    bench.state.trials[0].plan.closed = True
    bench.end(1)
    assert bench.start() == []
    assert other.leases(99, 1, ["cpu:0", "cpu:1"])


def test_experiment_that_needs_no_slot_leaves_the_waiting_list(bench: Bench) -> None:
    bench.start()
    for live in bench.state.trials.values():
        live.plan.closed = True
    assert bench.state.store.slots.waiting() == [bench.state.id]
    bench.end(1)
    bench.end(2)
    bench.engine.take_calls()
    assert bench.start() == []
    assert bench.engine.take_calls() == []
    assert bench.state.store.slots.waiting() == []
    assert bench.state.store.slots.holders() == {}


def test_slots_leased_for_closed_trials_are_released(bench: Bench) -> None:
    for request in (1, 2, 3):
        bench.state.trials[request].plan.closed = True  # the queue learns of it as it comes to them
    assert bench.start() == [0]
    assert bench.start() == []
    assert bench.state.store.slots.holders() == {bench.state.id: ["cpu:0"]}


def test_slots_are_leased_for_the_process_that_keeps_the_runs(bench: Bench) -> None:
    bench.engine.holder = os.getppid()
    bench.start()
    assert bench.state.store.slots.holder == os.getppid()


def test_agent_that_joins_during_discovery_holds_the_leases(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can release them, too."""
    nodes = bench.engine.nodes

    def just_come() -> list[Node]:
        bench.engine.holder = os.getppid()
        return nodes()

    monkeypatch.setattr(bench.engine, "nodes", just_come)
    assert bench.start() == [0, 1]
    for run in (1, 2):
        bench.end(run)
    assert bench.start() == [
        0,
        1,
    ], "else they wait for ever for what this process holds and cannot give back"


def test_nothing_starts_in_an_experiment_that_is_to_end(bench: Bench) -> None:
    bench.state.target_state = ExperimentState.PAUSED
    assert bench.start() == []
    assert bench.engine.take_calls() == []


def test_runs_that_need_no_slot_leave_room_for_others(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 0})
    assert bench.start() == [0, 1]
    assert [spec.devices for spec in bench.engine.specs] == [(), ()]
    assert bench.engine.take_calls() == [("want", 2, 0)]
    bench.end(1)
    bench.state.trials[0].plan.closed = True
    assert bench.start() == [2]
    with Store(store.home / "bounded") as other:
        bounded = Bench(other, resources={"slots_per_trial": 0, "max_slots": 1})
        assert bounded.start() == [0, 1]
        assert bounded.engine.take_calls() == [("want", 2, 0)]


def test_machine_without_slots_runs_one_zero_slot_trial_at_once(store: Store) -> None:
    assert Bench(store, slots=0, resources={"slots_per_trial": 0}).start() == [0]


def test_requested_slots_are_bounded_by_max_slots(store: Store) -> None:
    bench = Bench(store, slots=8, resources={"max_slots": 3})
    assert bench.start() == [0, 1, 2]
    assert bench.engine.take_calls() == [("want", 0, 1)]
    bench.end(3)
    bench.engine.there = []
    bench.start()
    assert bench.engine.take_calls() == [("want", 1, 1)]


def test_fewer_slots_preempt_the_newest_runs(store: Store) -> None:
    bench = Bench(store, slots=8, resources={"slots_per_trial": 2, "max_slots": 8})
    assert bench.start() == [0, 1, 2, 3]
    bench.engine.take_calls()
    for _ in range(2):
        with bench.state.transaction():
            bench.state.append_event(SearchSteered(max_slots=5))
        bench.fleet.follow_steering()
    why = "the experiment is limited to 5 slots"
    assert bench.engine.take_calls() == [("preempt", 3, why), ("preempt", 4, why)]
    bench.end(3)
    bench.end(4)
    assert bench.start() == []
    with bench.state.transaction():
        bench.state.append_event(SearchSteered(max_slots=6))
    bench.fleet.follow_steering()
    bench.fleet.poll()
    assert bench.start() == [2]
    # Without a limit, that of the configuration does not count either.
    with bench.state.transaction():
        bench.state.append_event(SearchSteered(max_slots=0))
    assert bench.fleet._most is None


def test_trials_of_two_slots_count_twice_against_max_slots(store: Store) -> None:
    bench = Bench(store, slots=8, resources={"slots_per_trial": 2, "max_slots": 5})
    assert bench.start() == [0, 1]
    assert [spec.devices for spec in bench.engine.specs] == [("cpu:0", "cpu:1"), ("cpu:2", "cpu:3")]
    assert bench.engine.take_calls() == [("want", 0, 2)]


def test_the_user_counts_who_is_recorded_after_the_driver_began(bench: Bench, store: Store) -> None:
    """A server records the user of a fork when its driver has the experiment."""
    write(store.experiment_dir(bench.state.id), {"user": "ann"})
    bench.fleet.find_user()
    assert bench.start() == [0, 1]
    sql = "SELECT user FROM shares"
    assert store.index.attempt(lambda database: database.rows(sql)) == [("ann",)]


def test_a_first_run_is_prepared_for_and_a_later_one_is_not(bench: Bench) -> None:
    bench.fleet.prepare()
    assert bench.engine.take_calls() == [("want", 1, 1)]
    bench.start()
    bench.engine.take_calls()
    bench.fleet.prepare()
    assert bench.engine.take_calls() == []


def test_search_without_open_trials_requests_slots_only_at_first(bench: Bench) -> None:
    """It requests them before its first trial exists."""
    bench.state.open.clear()
    bench.fleet.prepare()
    assert bench.engine.take_calls() == []
    bench.state.search.plans.clear()
    bench.fleet.prepare()
    assert bench.engine.take_calls() == [("want", 1, 1)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_cannot_have_an_agent_pauses_the_experiment(bench: Bench, number: int) -> None:
    bench.engine.refuses = OSError(number, "the disk says no")
    with pytest.raises(StoreUnwritable, match=r"^no agent can be started: the disk says no$"):
        bench.fleet.prepare()


def test_temporary_shortage_is_retried_and_other_errors_raise(bench: Bench) -> None:
    bench.engine.refuses = OSError(errno.EAGAIN, "no process now")
    bench.fleet.prepare()
    bench.engine.refuses = OSError(errno.ENOENT, "no such command")
    with pytest.raises(FileNotFoundError):
        bench.fleet.prepare()


# Machines


def test_a_run_goes_to_the_first_machine_with_room(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 2})
    small, fits = Node("small", ("small/0",)), Node("fits", ("fits/0", "fits/1"))
    large = Node("large", ("large/0", "large/1", "large/2", "large/3"))
    bench.engine.there = [small, fits, large]
    assert bench.start() == [0, 1, 2]
    assert [(spec.node, spec.devices, spec.world_size) for spec in bench.engine.specs] == [
        ("fits", ("fits/0", "fits/1"), 0),
        ("large", ("large/0", "large/1"), 0),
        ("large", ("large/2", "large/3"), 0),
    ]
    runs = [live.active for live in bench.fleet.running.values()]
    assert [active.nodes for active in runs if active] == [("fits",), ("large",), ("large",)]


def test_run_too_large_for_one_machine_spans_several(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 3})
    bench.engine.there = [
        Node("a", ("a/0", "a/1"), machine="one"),
        Node("b", ("b/0", "b/1"), machine="two"),
    ]
    assert bench.start() == [0]
    (spec,) = bench.engine.specs
    assert (spec.devices, spec.world_size) == (("a/0", "a/1", "b/0"), 3)
    (live,) = bench.fleet.running.values()
    assert live.active is not None
    assert (live.active.nodes, live.active.run.host) == (("a", "b"), "one, two")


def test_spanning_run_prefers_machines_with_gpus(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 2})
    bench.engine.there = [
        Node("cpus", ("cpus/0",)),
        Node("a", ("a/0",), ("0",)),
        Node("full", ()),
        Node("b", ("b/0",), ("0",)),
    ]
    assert bench.start() == [0]
    assert bench.engine.specs[0].devices == ("a/0", "b/0")


def test_run_that_fits_one_machine_waits_for_that_machine(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 2})
    bench.engine.there = [Node("a", ("a/0", "a/1")), Node("b", ("b/0", "b/1"))]
    store.slots.leases(99, 1, ["a/0"])
    store.slots.leases(99, 1, ["b/1"])
    assert bench.start() == []


def test_scripts_and_oversized_runs_do_not_span_machines(store: Store) -> None:
    two = [Node("a", ("a/0",)), Node("b", ("b/0",))]
    with Store(store.home / "script") as other:
        script = Bench(other, resources={"slots_per_trial": 2}, entrypoint="python3 train.py")
        script.engine.there = two
        assert script.start() == []
    large = Bench(store, resources={"slots_per_trial": 3})
    large.engine.there = two
    assert large.start() == []
    assert large.engine.take_calls() == [("want", 4, 3)]


# Where nothing goes on


def test_it_is_said_once_who_holds_the_slots(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fleet, "_EXPLAIN_SECONDS", 0.0)
    other = bench.state.store.slots
    held = other.leases(99, 1, ["cpu:0", "cpu:1"], count=2)
    bench.start()
    bench.fleet.poll()
    bench.start()
    assert bench.waits.why == ["for 1 slot: experiment 99 holds 2"]
    other.release(*held)
    bench.fleet.poll()
    assert bench.start() == [0, 1]
    bench.fleet.poll()
    bench.start()
    assert len(bench.waits.why) == 1  # its own trials are why the others wait
    bench.fleet.close()  # what its runs held is free
    other.stop_waiting(bench.state.id)
    other.leases(99, 1, ["cpu:0", "cpu:1"], count=2)
    for run in (1, 2):
        bench.end(run)
    bench.start()
    assert (
        bench.waits.why == ["for 1 slot: experiment 99 holds 2"] * 2
    )  # something went on in between


def test_it_is_said_why_an_engine_lends_no_machine(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 2})
    bench.engine.there, bench.engine.why = [], "Priority"
    bench.start()
    assert bench.waits.why == ["for 2 slots of the engine local: Priority"]


def test_notices_name_the_awaited_environment_then_the_agent(
    store: Store, clock: SimpleNamespace
) -> None:
    bench = Bench(store)
    bench.engine.there = []
    bench.start()
    clock.now += 5.0
    bench.fleet.poll()
    bench.start()
    assert bench.waits.why == []  # what comes before every first run
    bench.engine.preparing = lambda: "for its environment"
    bench.fleet.poll()
    bench.start()
    assert bench.state.store.trials.list(bench.state.id)[0].state == "PREPARING"
    bench.engine.preparing = lambda: ""
    clock.now += 0.1
    bench.fleet.poll()
    bench.start()
    assert bench.waits.why == ["for its environment", "for the engine local to place an agent"]
    bench.engine.why = "Resources"
    bench.fleet.poll()
    bench.start()
    assert bench.waits.why[2:] == ["for 1 slot of the engine local: Resources"]
    assert bench.state.store.trials.list(bench.state.id)[0].state == "QUEUED"


# What cannot be started


def test_failed_process_start_is_retried_with_growing_delays(
    store: Store, clock: SimpleNamespace
) -> None:
    bench = Bench(store, slots=1)
    for wait in (1, 2, 4, 8, 16, 32, 60, 60):
        bench.engine.refuses = OSError(errno.EAGAIN, "no process now")
        assert bench.start() == []
        event = bench.ended.pop()
        assert (event.status, event.unstarted, bench.ended) == (1, "no process now", [])
        assert (
            bench.end(event.run, unstarted=event.unstarted, status=1).unstarted == "no process now"
        )
        clock.now += wait - 0.1
        bench.engine.refuses = None
        bench.start()
        assert not bench.fleet.running
        clock.now += 0.1
    assert bench.waits.why == ["until a process can be started: no process now"] * 8
    assert bench.start() == [0]
    bench.end(9)
    assert bench.start() == [0]  # at once, as the one before has shown that it can
    bench.end(10, unstarted="no process now", status=1)
    clock.now += 1.0
    assert bench.start() == [0]


def test_unstartable_run_is_blocked_with_its_reason(bench: Bench) -> None:
    bench.start()
    active = bench.end(1, unstartable="no such interpreter")
    assert (active.outcome, active.message) == (
        Outcome.BLOCKED,
        "its run cannot be started: no such interpreter",
    )
    assert active.spoken == {0}


def test_unexpected_error_leaves_no_unsupervised_run(bench: Bench) -> None:
    bench.engine.refuses = ZeroDivisionError("of the engine")
    with pytest.raises(ZeroDivisionError):
        bench.start()
    assert bench.fleet.running == {}
    bench.fleet.close()
    assert bench.state.store.slots.holders() == {
        bench.state.id: ["cpu:1"]
    }  # of the run that was not begun


def test_how_a_rank_ended_counts_and_how_a_script_ended_does_not(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 2})
    bench.start()
    assert bench.end(1, status=-9, rank=1).message.startswith("rank 1 was killed by SIGKILL")
    bench.start()
    assert bench.end(2, status=-9, fenced=True).outcome is Outcome.PREEMPTED
    with Store(store.home / "script") as other:
        script = Bench(other, resources={"slots_per_trial": 2}, entrypoint="python3 train.py")
        script.start()
        assert script.end(1, status=-9, rank=1).message == ""
        script.start()
        assert script.end(2, status=-9, fenced=True).outcome is Outcome.PREEMPTED


# From one driver to the next


def test_next_driver_adopts_training_runs_and_ends_closed_ones(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.start()
    specs, state, slots = bench.engine.specs, bench.state, bench.state.store.slots
    live = state.trials[1]
    assert live.active is not None
    with state.transaction():
        state.validated(live, live.active, 5, {"loss": 1.0}, None)
    state.trials[0].plan.exited = Exit.INVALID_HP
    slots.release(*[each.active.lease for each in state.trials.values() if each.active])
    for each in state.trials.values():
        each.active = None
        state.queue.add(each)
    waiting = len(state.queue)
    bench.again()
    bench.engine.holder = os.getppid()
    bench.fleet.resume_runs(specs)
    assert [*bench.fleet.running] == [2]
    assert bench.engine.take_calls() == [("signal", 1, SIGKILL), ("acknowledge_end", 1)]
    active = state.trials[1].active
    assert active is not None
    assert (active.adopted, active.launched, active.validated_at, active.progressed_to) == (
        True,
        False,
        5,
        5,
    )
    assert (active.nodes, active.lease.devices, active.lease.slots) == (("",), ("cpu:1",), (1,))
    assert (slots.holder, slots.holders()) == (os.getppid(), {state.id: ["cpu:1"]})
    assert "run 1 of trial 2 goes on, as it did without a driver" in capsys.readouterr().err
    assert len(state.queue) == waiting - 1
    assert state.queue.first is state.trials[2]


def test_a_run_on_several_machines_is_taken_up_with_all_of_them(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 2})
    bench.engine.there = [Node("a", ("a/0",)), Node("b", ("b/0",))]
    bench.start()
    specs = bench.engine.specs
    bench.state.trials[0].active = None
    bench.again()
    bench.fleet.resume_runs(specs)
    active = bench.state.trials[0].active
    assert active is not None
    assert (active.nodes, active.validated_at, active.progressed_to) == (("a", "b"), -1, 0)


def test_rejoined_node_ends_unknown_runs_and_gets_preempts_again(bench: Bench) -> None:
    bench.start()
    bench.fleet.preempt(bench.state.trials[0], "because")
    bench.engine.take_calls()
    bench.fleet.joined(NodeJoined("", (1, 2, 7)))
    assert bench.engine.take_calls() == [
        ("preempt", 1, "it was asked to before"),
        ("signal", 7, SIGKILL),
        ("acknowledge_end", 7),
    ]
    bench.start()
    assert bench.engine.take_calls() == [("want", 2, 1)]  # there may be slots now


# Runs that are asked to end


def test_runs_are_asked_once_and_killed_after_their_patience(
    bench: Bench, clock: SimpleNamespace
) -> None:
    bench.start()
    bench.engine.take_calls()
    first, second = bench.state.trials[0], bench.state.trials[1]
    bench.fleet.preempt(first, "a pause", 3.0)
    bench.fleet.preempt_all("a pause of all")
    assert bench.engine.take_calls() == [
        ("preempt", 1, "a pause"),
        ("preempt", 2, "a pause of all"),
    ]
    assert first.active is not None
    assert second.active is not None
    assert first.active.preempting
    assert second.active.preempting
    assert (first.active.deadline, second.active.deadline) == (
        1003.0,
        1000.0 + bench.state.config.patience,
    )
    clock.now = 1003.0
    bench.fleet.poll()
    assert bench.engine.take_calls() == []
    clock.now = 1003.1
    bench.fleet.poll()
    assert bench.engine.take_calls() == [("signal", 1, SIGKILL)]


def test_without_patience_a_run_is_killed_at_the_next_look(
    bench: Bench, clock: SimpleNamespace
) -> None:
    bench.start()
    bench.fleet.preempt(bench.state.trials[1], "now", 0.0)
    clock.now += 0.01
    bench.engine.take_calls()
    bench.fleet.poll()
    assert bench.engine.take_calls() == [("signal", 2, SIGKILL)]


def test_committed_messages_without_reply_are_acknowledged_once(bench: Bench) -> None:
    bench.start()
    bench.engine.take_calls()
    first, second = bench.state.trials[0].active, bench.state.trials[1].active
    assert first is not None
    assert second is not None
    first.acked |= {3: 5, 4: 1}
    second.acked[7] = 2
    bench.fleet.poll()
    assert sorted(bench.engine.take_calls()) == [
        ("acknowledge", 1, 3, 5),
        ("acknowledge", 1, 4, 1),
        ("acknowledge", 2, 7, 2),
    ]
    first.acked[3] = 6
    bench.fleet.poll()
    assert bench.engine.take_calls() == [("acknowledge", 1, 3, 6)]
    assert first.deadline == math.inf
    bench.state.trials[0].active = None  # it has just ended
    second.acked[7] = 3
    bench.fleet.poll()
    assert bench.engine.take_calls() == [("acknowledge", 2, 7, 3)]


def test_an_engine_hears_when_no_room_is_needed_any_more(bench: Bench) -> None:
    bench.start()
    for live in bench.state.trials.values():
        bench.state.queue.discard(live)
    bench.engine.take_calls()
    bench.fleet.poll()
    assert bench.engine.take_calls() == [("want", 0, 1)]


def test_kill_all_kills_every_run_and_close_releases_slots(bench: Bench) -> None:
    bench.start()
    bench.engine.take_calls()
    bench.fleet.kill_all()
    assert bench.engine.take_calls() == [("signal", 1, SIGKILL), ("signal", 2, SIGKILL)]
    bench.fleet.close()
    assert bench.engine.take_calls() == [("signal", 1, SIGKILL), ("signal", 2, SIGKILL)]
    assert bench.state.store.slots.holders() == {}


@pytest.mark.process
def test_runs_of_a_lost_node_are_preempted_and_end_when_gone(store: Store) -> None:
    """They end when none of their processes is left."""
    bench = Bench(store, preemption_timeout=1)
    bench.start()
    first, second = bench.state.trials[0].active, bench.state.trials[1].active
    assert first is not None
    assert second is not None
    second.nodes = ("gone",)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as left:
        second.run.log_dir.mkdir(parents=True)
        note_process(second.run.log_dir, left.pid)
        bench.fleet.mark_lost("gone")
        assert (first.outcome, second.outcome, second.spoken) == (None, Outcome.PREEMPTED, {0})
        deadline = time.monotonic() + 10
        while not bench.ended and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left.wait(timeout=5) == -SIGKILL
    assert [(event.run, event.status) for event in bench.ended] == [(2, -SIGKILL)]
    bench.engine.take_calls()
    bench.start()
    assert bench.engine.take_calls() == [("want", 2, 1)]  # there may be slots elsewhere


def test_engine_ends_leftovers_of_a_run_on_several_machines(store: Store) -> None:
    bench = Bench(store, resources={"slots_per_trial": 2})
    bench.engine.there = [Node("a", ("a/0",)), Node("b", ("b/0",))]
    bench.start()
    before = threading.active_count()
    bench.fleet.mark_lost("b")
    active = bench.state.trials[0].active
    assert active is not None
    assert active.outcome is Outcome.PREEMPTED
    time.sleep(0.05)
    assert threading.active_count() <= before
    assert bench.ended == []


def test_a_run_that_its_machine_killed_as_it_began_is_preempted(bench: Bench) -> None:
    """A process that has yet to begin does not handle SIGTERM."""
    bench.start()
    bench.engine.leaving = {""}
    assert bench.end(1, status=-SIGKILL).outcome is Outcome.PREEMPTED
    bench.engine.leaving = {"another"}
    assert bench.end(2, status=-SIGKILL).outcome is None


def waiting(act: Callable[[], None]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def test_disconnected_runs_are_awaited_until_ended_or_killed(bench: Bench) -> None:
    bench.start()
    bench.engine.take_calls()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    inbox.put(Ended(99, 0))
    inbox.put(StopRequest("pause", "a word that changes nothing"))
    inbox.put(Ended(1, 0))
    threading.Timer(0.3, lambda: inbox.put(Ended(2, 0))).start()
    assert waiting(lambda: bench.fleet.end_runs(inbox)) > 0.25
    assert bench.engine.take_calls() == [("let go",)]
    assert bench.fleet.running == {}

    bench.start()
    bench.fleet.running[5] = bench.state.trials[3]
    inbox.put(StopRequest("kill", "enough"))
    bench.fleet.end_runs(inbox)
    assert 5 in bench.fleet.running


def test_disconnected_runs_are_awaited_for_the_configured_time(store: Store) -> None:
    bench = Bench(store, preemption_timeout=1)
    bench.start()
    assert bench.state.config.patience == 1
    assert 0.9 < waiting(lambda: bench.fleet.end_runs(queue.SimpleQueue())) < 3
    assert [*bench.fleet.running] == [1, 2]

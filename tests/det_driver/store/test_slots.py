from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_core.errors import StoreError
from det_core.process import born
from det_driver.store import Lease, Store, _slots

SHARE = """
import os, random, sys, time
from pathlib import Path
from det_driver.store import Store
home, experiment, total, times = Path(sys.argv[1]), *map(int, sys.argv[2:])
dice = random.Random(experiment)
with Store(home) as store:
    for _ in range(times):
        want = dice.randint(1, total)
        while (lease := store.slots.lease(experiment, want, [f"cpu:{k}" for k in range(total)])) is None:
            time.sleep(0.002)
        assert len(lease.slots) == want and set(lease.slots) <= set(range(total)), lease
        for slot in lease.slots:
            os.close(os.open(home / f"slot-{slot}", os.O_CREAT | os.O_EXCL))  # fails where two hold one slot
        time.sleep(dice.random() / 500)
        for slot in lease.slots:
            (home / f"slot-{slot}").unlink()
        store.slots.release(lease)
print("done")
"""

HOLD = """
import sys
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store:
    two = ["cpu:0", "cpu:1"]
    print(store.slots.lease(int(sys.argv[2]), 2, two).slots, store.slots.lease(int(sys.argv[2]), 1, two), flush=True)
    sys.stdin.read()
"""


def cpu(count: int) -> list[str]:
    return [f"cpu:{k}" for k in range(count)]


@pytest.fixture
def drivers(store: Store) -> list[int]:
    """Three experiments, each of which stands for a driver: a process waits once per experiment."""
    return [store.experiments.create(name="x", config="{}").id for _ in range(3)]


def test_slots_are_leased_until_none_is_left(
    store: Store, drivers: list[int], leased: Callable[[Store], dict[str, int]]
) -> None:
    first = store.slots.lease(drivers[0], 2, cpu(3))
    second = store.slots.lease(drivers[1], 1, cpu(3))

    assert first is not None
    assert second is not None
    assert (first.slots, second.slots, first.devices) == ((0, 1), (2,), ("cpu:0", "cpu:1"))
    assert store.slots.lease(drivers[2], 1, cpu(3)) is None
    assert leased(store) == {"cpu:0": 1, "cpu:1": 1, "cpu:2": 2}

    store.slots.release(first)
    store.slots.release(first)
    assert leased(store) == {"cpu:2": 2}
    third = store.slots.lease(drivers[2], 1, cpu(3))
    assert third is not None
    assert third.slots == (0,)


def test_a_trial_of_two_slots_is_not_starved_by_trials_of_one(store: Store, drivers: list[int]) -> None:
    small, other, big = drivers
    one, two = store.slots.lease(small, 1, cpu(2)), store.slots.lease(other, 1, cpu(2))
    assert one is not None
    assert two is not None
    assert store.slots.lease(big, 2, cpu(2)) is None

    store.slots.release(one)
    assert store.slots.lease(small, 1, cpu(2)) is None, "the free slot is kept for the one that came first"
    store.slots.release(two)
    assert store.slots.lease(other, 1, cpu(2)) is None

    granted = store.slots.lease(big, 2, cpu(2))
    assert granted is not None
    assert granted.slots == (0, 1)


def test_slots_that_an_earlier_one_cannot_use_are_not_kept_for_it(store: Store, drivers: list[int]) -> None:
    """A driver that sees one GPU waits for slot 0; slot 1 is none of its business."""
    assert store.slots.lease(drivers[0], 1, cpu(1)) is not None
    assert store.slots.lease(drivers[1], 1, cpu(1)) is None

    granted = store.slots.lease(drivers[2], 1, cpu(2))
    assert granted is not None
    assert granted.slots == (1,)


def test_whoever_stops_waiting_holds_nobody_up(store: Store, drivers: list[int]) -> None:
    held = store.slots.lease(drivers[0], 1, cpu(2))
    assert held is not None
    assert store.slots.lease(drivers[1], 2, cpu(2)) is None
    assert store.slots.lease(drivers[2], 1, cpu(2)) is None

    store.slots.stop_waiting(drivers[1])

    assert store.slots.lease(drivers[2], 1, cpu(2)) is not None


def test_a_place_that_is_not_renewed_expires(store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that hangs must not hold up the machine."""
    assert store.slots.lease(drivers[0], 1, cpu(2)) is not None
    assert store.slots.lease(drivers[1], 2, cpu(2)) is None

    monkeypatch.setattr(_slots, "WAITING_SECONDS", -1.0)

    assert store.slots.lease(drivers[2], 1, cpu(2)) is not None


def test_more_slots_than_there_are_is_a_mistake(store: Store, drivers: list[int]) -> None:
    with pytest.raises(StoreError, match=r"^slots_per_trial is 3, and this machine has 2 slots; ask for 2 at most$"):
        store.slots.lease(drivers[0], 3, cpu(2))


def test_devices_are_leased_by_their_ids_whatever_else_a_driver_sees(store: Store, drivers: list[int]) -> None:
    """One driver has CUDA_VISIBLE_DEVICES=0,1,2,3 and another 3, which is its first."""
    all_four = [f"cuda:{k}" for k in range(4)]
    assert store.slots.lease(drivers[0], 4, all_four) is not None
    assert store.slots.lease(drivers[1], 1, ["cuda:3"]) is None
    with pytest.raises(StoreError, match=r"^slots_per_trial is 2, and this machine has 1 slots; ask for 1 at most$"):
        store.slots.lease(drivers[1], 2, ["cuda:3"])

    store.slots.stop_waiting(drivers[1])
    granted = store.slots.lease(drivers[2], 1, ["cuda:7"])
    assert granted is not None
    assert granted.slots == (0,)


def test_an_experiment_holds_as_many_slots_at_once_as_it_may(store: Store, drivers: list[int]) -> None:
    held = [store.slots.lease(drivers[0], 1, cpu(4), most=2) for _ in range(3)]

    assert [lease is not None for lease in held] == [True, True, False]
    assert store.slots.lease(drivers[1], 2, cpu(4)) is not None, "it does not wait for what it may not have"
    assert held[0] is not None
    store.slots.release(held[0])
    assert store.slots.lease(drivers[0], 1, cpu(4), most=2) is not None


def test_no_slots_at_all_may_be_leased(store: Store, drivers: list[int]) -> None:
    lease = store.slots.lease(drivers[0], 0, cpu(0))

    assert lease is not None
    assert lease.slots == ()


def test_processes_that_lease_at_once_never_share_a_slot(
    store: Store,
    drivers: list[int],
    start: Callable[..., subprocess.Popen[str]],
    leased: Callable[[Store], dict[str, int]],
) -> None:
    processes = [start(SHARE, store.home, experiment, 2, 40) for experiment in drivers]

    assert [process.communicate(timeout=60)[0] for process in processes] == ["done\n"] * 3
    assert leased(store) == {}


def test_slots_of_a_killed_process_are_free_even_while_its_corpse_lies_there(
    store: Store,
    drivers: list[int],
    start: Callable[..., subprocess.Popen[str]],
    leased: Callable[[Store], dict[str, int]],
) -> None:
    holder = start(HOLD, store.home, drivers[0])
    assert holder.stdout is not None
    assert holder.stdout.readline() == "(0, 1) None\n"
    assert store.slots.lease(drivers[1], 1, cpu(2)) is None

    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)

    assert leased(store) == {}
    granted = store.slots.lease(drivers[1], 2, cpu(2))
    assert granted is not None
    assert granted.slots == (0, 1)


def test_a_pid_that_is_used_again_is_another_process(
    store: Store, drivers: list[int], leased: Callable[[Store], dict[str, int]]
) -> None:
    with Store(store.home) as other:
        assert other.slots.lease(drivers[0], 2, cpu(2)) is not None
    store.index.database.run("UPDATE leases SET born = 'an earlier boot' || born")

    assert leased(store) == {}
    assert store.slots.lease(drivers[1], 2, cpu(2)) is not None


def test_what_other_machines_hold_that_share_the_home_stays_theirs(store: Store, drivers: list[int]) -> None:
    assert store.slots.lease(drivers[0], 2, cpu(2)) is not None
    store.index.database.run("INSERT INTO leases VALUES ('another boot', 'cpu:0', 2, 1, 'long ago')")

    assert store.slots.lease(drivers[1], 1, cpu(1)) is None
    assert store.index.database.rows("SELECT pid FROM leases WHERE boot = 'another boot'") == [(1,)]


def test_devices_that_could_not_be_given_back_are_with_the_next_word(
    store: Store, drivers: list[int], leased: Callable[[Store], dict[str, int]]
) -> None:
    lease = store.slots.lease(drivers[0], 1, cpu(1))
    assert lease is not None
    with closing(sqlite3.connect(store.index.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.slots.release(lease)
        assert leased(store) == {"cpu:0": drivers[0]}
        other.execute("ROLLBACK")

    store.slots.keep()
    assert leased(store) == {}


def test_a_birth_is_the_same_each_time_and_none_for_nobody(start: Callable[..., subprocess.Popen[str]]) -> None:
    child = start("import sys; sys.stdin.read()")

    assert born(os.getpid()) == born(os.getpid()) != born(child.pid) is not None
    assert born(4194305) is None


def test_a_name_with_spaces_and_parentheses_does_not_confuse_the_birth(tmp_path: Path) -> None:
    (tmp_path / "a) R 1 (b").symlink_to("/bin/sleep")
    child = subprocess.Popen([tmp_path / "a) R 1 (b", "60"])
    try:
        birth = born(child.pid)
        assert birth is not None
        assert birth.split()[0].isdigit()
        assert int(birth.split()[0]) >= int((born(os.getpid()) or "").split()[0])
    finally:
        child.kill()
        child.wait()


TOTAL = 3
asks = st.tuples(st.just("ask"), st.integers(0, 2), st.integers(1, TOTAL))
releases = st.tuples(st.just("release"), st.integers(0, 2))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(asks | releases, max_size=30))
def test_any_sequence_serves_first_come_first_and_no_slot_twice(
    store: Store, actions: list[tuple[object, ...]]
) -> None:
    drivers = [store.experiments.create(name="x", config="{}").id for _ in range(3)]
    held: dict[int, list[Lease]] = {driver: [] for driver in drivers}
    queue: list[int] = []
    for kind, which, *want in actions:
        driver = drivers[which]  # type: ignore[call-overload]
        if kind == "release":
            for lease in held[driver]:
                store.slots.release(lease)
            held[driver] = []
            continue
        free = TOTAL - sum(len(lease.slots) for leases in held.values() for lease in leases)
        lease = store.slots.lease(driver, *want, cpu(TOTAL))  # type: ignore[misc, arg-type]
        first = not queue or queue[0] == driver
        assert (lease is not None) == (first and want[0] <= free)
        queue = [each for each in queue if lease is None or each != driver]
        if lease is not None:
            held[driver].append(lease)
        elif driver not in queue:
            queue.append(driver)
        taken = [slot for leases in held.values() for each in leases for slot in each.slots]
        assert len(taken) == len({*taken}) <= TOTAL
    for driver in drivers:
        store.slots.stop_waiting(driver)
        for lease in held[driver]:
            store.slots.release(lease)

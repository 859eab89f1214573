from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_core.errors import StoreError
from det_driver.queue import HALF_LIFE_SECONDS, TURN_SECONDS, Decision, decide
from det_driver.store import Lease, Store, _slots, boot_id
from det_driver.store._database import Database
from det_driver.store._schema import INDEX
from det_driver.store._slots import LOOK_SECONDS
from det_node.process import process_identity

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


@pytest.mark.process
def test_devices_go_to_whom_runs_were_preempted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run is preempted for a request of one slot, whoever has waited for longer."""
    processes = [subprocess.Popen(["sleep", "300"]) for _ in range(4)]
    clock = [1000.0]
    monkeypatch.setattr(_slots, "_now", lambda: clock[0])
    two = cpu(2)
    try:
        urgent, one, patient, other = stores = [Store(tmp_path / "home") for _ in processes]
        shares = zip(stores, processes, (10, 42, 42, 42), strict=True)
        for id, (store, process, priority) in enumerate(shares, 1):
            store.slots.holder = process.pid
            store.slots.set_share(id, priority, 1.0)
        held = {one: one.slots.leases(2, 1, two), other: other.slots.leases(4, 1, two)}
        # It asks in time for 6.5 hours.
        for _ in range(2600):
            clock[0] += 9.0
            assert not patient.slots.leases(3, 2, two)
        assert not urgent.slots.leases(1, 1, two)
        (gives,) = [s for s, id in ((one, 2), (other, 4)) if s.slots.recalled(id)]
        gives.slots.release(*held[gives])
        assert not patient.slots.leases(3, 2, two)
        assert urgent.slots.leases(1, 1, two)
        assert not one.slots.recalled(2)
        assert not other.slots.recalled(4)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_free_slot_goes_to_the_user_who_used_least(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(_slots, "_now", lambda: clock[0])
    first, second, other = drivers
    for id, user in ((first, "ann"), (second, "ann"), (other, "bob")):
        store.slots.set_share(id, 42, 1.0, user)
    (lease,) = store.slots.leases(first, 1, cpu(1))
    assert not store.slots.leases(second, 1, cpu(1))
    clock[0] += 5.0
    assert not store.slots.leases(other, 1, cpu(1))
    assert store.slots.waiting() == [other, second]
    store.slots.release(lease)
    assert not store.slots.leases(second, 1, cpu(1))
    (lease,) = store.slots.leases(other, 1, cpu(1))
    # Half of what Ann has used is forgotten by then, and Bob has used more.
    clock[0] += HALF_LIFE_SECONDS
    assert not store.slots.leases(first, 1, cpu(1))
    store.slots.release(lease)
    assert not store.slots.leases(other, 1, cpu(1))
    assert store.slots.leases(first, 1, cpu(1))


def test_shares_without_use_are_deleted_and_written_again(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each experiment and each start of the machine leaves a row for ever."""
    clock, day = [1000.0], [1.7e9]
    monkeypatch.setattr(_slots, "_now", lambda: clock[0])
    monkeypatch.setattr(_slots.time, "time", lambda: day[0])

    def shares() -> list[tuple[str, int]]:
        sql = "SELECT boot, experiment_id FROM shares ORDER BY experiment_id"
        return store.index.database.rows(sql)

    first, second, _ = drivers
    sql = "INSERT INTO shares (boot, experiment_id, until) VALUES ('earlier', ?, ?)"
    for id, until in ((8, day[0] - 1), (9, day[0] + 1)):
        store.index.database.run(sql, (id, until))
    store.slots.set_share(first, 7, 1.0, "ann")
    (lease,) = store.slots.leases(first, 1, cpu(1))
    assert shares() == [(boot_id(), first), ("earlier", 9)]
    clock[0] += 70.0
    store.slots.release(lease)
    with Store(store.home) as looking:
        looking.slots.set_share(second, 42, 1.0)
        (lease,) = looking.slots.leases(second, 1, cpu(1))
        # After six half-lives, about a second of the 70 is left.
        day[0] += 6 * HALF_LIFE_SECONDS
        clock[0] += 6 * HALF_LIFE_SECONDS
        looking.slots.keep()
        assert (boot_id(), first) in shares()
        day[0] += HALF_LIFE_SECONDS
        clock[0] += HALF_LIFE_SECONDS
        looking.slots.keep()
        assert shares() == [(boot_id(), second)]
        # The first driver still runs, and asks with its priority.
        assert store.slots._attempt(lambda database, birth: True)
        assert not store.slots.leases(first, 1, cpu(1))
        assert (boot_id(), first) in shares()
        assert [(each.experiment, each.priority) for each in store.slots.queue().waiting] == [
            (first, 7)
        ]
        looking.slots.release(lease)


@pytest.fixture
def drivers(store: Store) -> list[int]:
    """Three experiments, each of which stands for a driver: a process waits once per experiment."""
    return [store.experiments.create(name="x", config="{}").id for _ in range(3)]


@pytest.fixture
def always_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each process look for dead ones, not only one a second."""
    monkeypatch.setattr(_slots, "LOOK_SECONDS", 0.0)


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


def test_a_trial_of_two_slots_is_not_starved_by_trials_of_one(
    store: Store, drivers: list[int]
) -> None:
    small, other, big = drivers
    one, two = store.slots.lease(small, 1, cpu(2)), store.slots.lease(other, 1, cpu(2))
    assert one is not None
    assert two is not None
    assert store.slots.lease(big, 2, cpu(2)) is None

    store.slots.release(one)
    assert store.slots.lease(small, 1, cpu(2)) is None, (
        "the free slot is kept for the one that came first"
    )
    store.slots.release(two)
    assert store.slots.lease(other, 1, cpu(2)) is None

    granted = store.slots.lease(big, 2, cpu(2))
    assert granted is not None
    assert granted.slots == (0, 1)


def test_slots_useless_to_a_waiting_driver_are_not_reserved(
    store: Store, drivers: list[int]
) -> None:
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


def test_what_a_called_request_leaves_goes_to_the_next_at_once(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are not called with it, as it may take any of the devices."""
    monkeypatch.setattr(_slots, "_now", lambda: 1000.0)
    held = store.slots.lease(drivers[0], 3, cpu(3))
    assert held is not None
    with Store(store.home) as first, Store(store.home) as second:
        assert first.slots.lease(drivers[1], 1, cpu(3)) is None
        assert second.slots.lease(drivers[2], 1, cpu(3)) is None
        store.slots.release(held)
        assert second.slots.lease(drivers[2], 1, cpu(3)) is None
        assert first.slots.lease(drivers[1], 1, cpu(3)) is not None
        assert second.slots.lease(drivers[2], 1, cpu(3)) is not None


def test_in_its_turn_an_experiment_gets_what_becomes_free(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two wait, and slots become free one by one. The second one is asked first."""
    clock = [1000.0]
    monkeypatch.setattr(_slots, "_now", lambda: clock[0])
    held = store.slots.leases(drivers[0], 1, cpu(4), count=4)
    with Store(store.home) as first, Store(store.home) as second:

        def ask() -> tuple[int, int]:
            others = len(second.slots.leases(drivers[2], 1, cpu(4), count=4))
            return len(first.slots.leases(drivers[1], 1, cpu(4), count=4)), others

        assert ask() == (0, 0)
        assert store.slots.waiting() == drivers[2:0:-1]
        store.slots.release(held[0])
        assert ask() == (0, 1)
        assert store.slots.waiting() == drivers[2:0:-1]
        clock[0] += 0.9 * TURN_SECONDS
        store.slots.release(held[1])
        assert ask() == (0, 1)
        assert store.slots.waiting() == drivers[2:0:-1]
        clock[0] += 0.2 * TURN_SECONDS
        assert store.slots.waiting() == drivers[1:3]
        store.slots.release(held[2])
        assert ask() == (1, 0)
        assert store.slots.waiting() == drivers[1:3]
        store.slots.release(held[3])
        assert ask() == (1, 0)


def test_a_turn_keeps_no_slot_that_a_large_trial_cannot_use(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_slots, "_now", lambda: 1000.0)
    held = store.slots.lease(drivers[0], 3, cpu(3))
    assert held is not None
    with Store(store.home) as large, Store(store.home) as small:
        assert not large.slots.leases(drivers[1], 2, cpu(3), count=2)
        assert small.slots.lease(drivers[2], 1, cpu(3)) is None
        store.slots.release(held)
        assert len(large.slots.leases(drivers[1], 2, cpu(3), count=2)) == 1
        assert not large.slots.leases(drivers[1], 2, cpu(3), count=1)
        assert small.slots.lease(drivers[2], 1, cpu(3)) is not None


def test_a_first_request_waits_in_the_queue_whoever_has_looked(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers that train look every second. A new one got no place as long as they did."""
    monkeypatch.setattr(_slots, "_now", lambda: 1000.0)
    assert store.slots.lease(drivers[0], 1, cpu(2)) is not None
    assert store.slots.lease(drivers[1], 1, cpu(2)) is not None
    with Store(store.home) as third:
        assert third.slots.waiting() == []
        assert third.slots.lease(drivers[2], 1, cpu(2)) is None
        assert store.slots.waiting() == [drivers[2]]


def test_a_repeated_request_is_decided_once_a_second(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise many that wait hold the lock of the index in turn. What is freed is given at once."""
    clock = [1000.0]
    monkeypatch.setattr(_slots, "_now", lambda: clock[0])
    held = store.slots.lease(drivers[0], 1, cpu(1))
    assert held is not None
    with Store(store.home) as waiting, closing(sqlite3.connect(store.index.path)) as other:

        def writes(ask: Callable[[], object]) -> bool:
            (before,) = other.execute("PRAGMA data_version").fetchone()
            assert ask() is None
            return (before,) != other.execute("PRAGMA data_version").fetchone()

        def ask() -> Lease | None:
            return waiting.slots.lease(drivers[1], 1, cpu(1))

        assert [writes(ask) for _ in range(3)] == [True, False, False]
        clock[0] += LOOK_SECONDS
        assert [writes(ask) for _ in range(3)] == [True, False, False]
        assert writes(lambda: waiting.slots.lease(drivers[1], 1, ["cpu:0", "cpu:0"]))
        assert [writes(ask) for _ in range(2)] == [True, False]
        store.slots.release(held)
        assert ask() is not None


def test_a_free_slot_is_decided_once_however_many_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each that waits decided, two hundred drivers would keep a machine busy."""
    decisions: list[int] = []

    def counting(*state: Any) -> Decision:
        decisions.append(1)
        return decide(*state)

    monkeypatch.setattr(_slots, "decide", counting)
    monkeypatch.setattr(_slots, "_now", lambda: 1000.0)
    ids = [store.experiments.create(name="x", config="{}").id for _ in range(30)]
    held = store.slots.lease(ids[0], 1, cpu(1))
    assert held is not None
    with ExitStack() as stack:
        waiting = {id: stack.enter_context(Store(store.home)) for id in ids[1:]}

        def ask() -> list[int]:
            found = {id: each.slots.lease(id, 1, cpu(1)) for id, each in waiting.items()}
            return [id for id, lease in found.items() if lease]

        assert ask() == []
        decisions.clear()
        assert ask() == ask() == []
        assert decisions == []
        store.slots.release(held)
        assert ask() == [ids[1]]
        # Where it was released, and where it was leased.
        assert len(decisions) == 2
        assert ask() == []
        assert len(decisions) <= 3


@pytest.mark.usefixtures("always_looked")
def test_a_place_that_is_not_renewed_expires(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that hangs must not hold up the machine."""
    assert store.slots.lease(drivers[0], 1, cpu(2)) is not None
    assert store.slots.lease(drivers[1], 2, cpu(2)) is None

    monkeypatch.setattr(_slots, "WAITING_SECONDS", -1.0)

    assert store.slots.lease(drivers[2], 1, cpu(2)) is not None


def test_more_slots_than_there_are_is_a_mistake(store: Store, drivers: list[int]) -> None:
    with pytest.raises(
        StoreError, match=r"^slots_per_trial is 3, and this machine has 2 slots; ask for 2 at most$"
    ):
        store.slots.lease(drivers[0], 3, cpu(2))


def test_devices_are_leased_by_id_whatever_a_driver_sees(store: Store, drivers: list[int]) -> None:
    """One driver has CUDA_VISIBLE_DEVICES=0,1,2,3 and another 3, which is its first."""
    all_four = [f"cuda:{k}" for k in range(4)]
    assert store.slots.lease(drivers[0], 4, all_four) is not None
    assert store.slots.lease(drivers[1], 1, ["cuda:3"]) is None
    with pytest.raises(
        StoreError, match=r"^slots_per_trial is 2, and this machine has 1 slots; ask for 1 at most$"
    ):
        store.slots.lease(drivers[1], 2, ["cuda:3"])

    store.slots.stop_waiting(drivers[1])
    granted = store.slots.lease(drivers[2], 1, ["cuda:7"])
    assert granted is not None
    assert granted.slots == (0,)


def test_an_experiment_holds_as_many_slots_at_once_as_it_may(
    store: Store, drivers: list[int]
) -> None:
    held = [store.slots.lease(drivers[0], 1, cpu(4), most=2) for _ in range(3)]

    assert [lease is not None for lease in held] == [True, True, False]
    assert store.slots.lease(drivers[1], 2, cpu(4)) is not None, (
        "it does not wait for what it may not have"
    )
    assert held[0] is not None
    store.slots.release(held[0])
    assert store.slots.lease(drivers[0], 1, cpu(4), most=2) is not None


def test_no_slots_at_all_may_be_leased(store: Store, drivers: list[int]) -> None:
    lease = store.slots.lease(drivers[0], 0, cpu(0))

    assert lease is not None
    assert lease.slots == ()


def host_key(device: str) -> str:
    """Return the id of a device of a host, which the agents of several experiments have."""
    return device.partition("@")[2]


def test_experiments_share_the_devices_of_hosts(store: Store, drivers: list[int]) -> None:
    """Each has agents of its own, and the run of two slots gets them on one host."""
    store.slots.key = host_key
    hosts = ["a/cpu:0", "b/cpu:0", "b/cpu:1"]
    mine, other = ([f"{agent}@{device}" for device in hosts] for agent in ("mine", "other"))
    (lease,) = store.slots.leases(drivers[0], 2, mine, machines=[1, 2], count=2)
    assert lease == Lease(drivers[0], (0, 1), ("mine@b/cpu:0", "mine@b/cpu:1"))
    (small,) = store.slots.leases(drivers[1], 1, other, machines=[1, 2], count=2)
    assert small == Lease(drivers[1], (0,), ("other@a/cpu:0",))
    assert store.slots.holders() == {drivers[0]: ["b/cpu:0", "b/cpu:1"], drivers[1]: ["a/cpu:0"]}
    waiting = store.slots.queue().waiting
    # The second one has its turn still.
    assert [(each.experiment, each.slots, each.machines) for each in waiting] == [
        (drivers[1], 1, (1, 2)),
        (drivers[0], 2, (1, 2)),
    ]
    store.slots.release(lease)
    assert store.slots.holders() == {drivers[1]: ["a/cpu:0"]}
    with pytest.raises(StoreError, match=r"^slots_per_trial is 3, and the largest machine has 2 "):
        store.slots.leases(drivers[2], 3, mine, machines=[1, 2])


@pytest.mark.usefixtures("always_looked")
def test_runs_elsewhere_keep_devices_when_their_driver_dies(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the agents have ended them, or the next driver goes on with them."""
    clock = [1000.0]
    monkeypatch.setattr(_slots, "_now", lambda: clock[0])
    monkeypatch.setattr(_slots, "is_running", lambda pid, born: pid not in dead)
    dead: set[int] = set()
    first, second, _ = drivers
    with Store(store.home) as driver:
        driver.slots.holder, driver.slots.fence = 1, 60.0
        leases = driver.slots.leases(first, 1, cpu(3), count=2)
    dead.add(1)
    assert len(leases) == 2
    assert [each.devices for each in store.slots.leases(second, 1, cpu(3), count=3)] == [("cpu:2",)]

    with Store(store.home) as resumed:
        resumed.slots.holder, resumed.slots.fence = 2, 60.0
        resumed.slots.hold(first, leases[0])
        assert resumed.slots.holders() == {first: ["cpu:0"], second: ["cpu:2"]}
    (given,) = store.slots.leases(second, 1, cpu(3), count=2)
    assert given.devices == ("cpu:1",)

    dead.add(2)
    clock[0] += 2.0
    assert not store.slots.leases(second, 1, cpu(3))
    clock[0] += 59.0
    assert not store.slots.leases(second, 1, cpu(3))
    clock[0] += 2.0
    assert [each.devices for each in store.slots.leases(second, 1, cpu(3))] == [("cpu:0",)]


@pytest.mark.usefixtures("always_looked")
def test_devices_of_a_dead_driver_are_free_when_its_runs_end(
    store: Store, drivers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_slots, "is_running", lambda pid, born: pid != 1)
    with Store(store.home) as driver:
        driver.slots.holder, driver.slots.fence = 1, 600.0
        assert driver.slots.leases(drivers[0], 1, cpu(1))
    assert not store.slots.leases(drivers[1], 1, cpu(1))
    with Store(store.home) as command:
        command.slots.end_fenced(drivers[0])
    assert store.slots.leases(drivers[1], 1, cpu(1))


@pytest.mark.process
def test_processes_that_lease_at_once_never_share_a_slot(
    store: Store,
    drivers: list[int],
    start: Callable[..., subprocess.Popen[str]],
    leased: Callable[[Store], dict[str, int]],
) -> None:
    processes = [start(SHARE, store.home, experiment, 2, 40) for experiment in drivers]

    assert [process.communicate(timeout=60)[0] for process in processes] == ["done\n"] * 3
    assert leased(store) == {}


@pytest.mark.usefixtures("always_looked")
@pytest.mark.process
def test_slots_of_a_killed_process_are_free_while_it_is_a_zombie(
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


@pytest.mark.usefixtures("always_looked")
def test_a_pid_that_is_used_again_is_another_process(
    store: Store, drivers: list[int], leased: Callable[[Store], dict[str, int]]
) -> None:
    with Store(store.home) as other:
        assert other.slots.lease(drivers[0], 2, cpu(2)) is not None
    store.index.database.run("UPDATE leases SET born = 'an earlier boot' || born")

    assert leased(store) == {}
    assert store.slots.lease(drivers[1], 2, cpu(2)) is not None


def test_leases_of_other_machines_that_share_the_home_are_kept(
    store: Store, drivers: list[int]
) -> None:
    assert store.slots.lease(drivers[0], 2, cpu(2)) is not None
    store.index.database.run(
        "INSERT INTO leases (boot, device, experiment_id, pid, born) VALUES ('another boot', 'cpu:0',"
        " 2, 1, 'long ago')"
    )

    assert store.slots.lease(drivers[1], 1, cpu(1)) is None
    assert store.index.database.rows("SELECT pid FROM leases WHERE boot = 'another boot'") == [(1,)]


def test_leases_in_an_index_of_an_earlier_det_are_kept(tmp_path: Path) -> None:
    """It has no priorities yet, and its drivers still run."""
    with Store(tmp_path):
        pass
    with closing(Database(tmp_path / "index.db", INDEX[:1])) as old:
        old.run("INSERT INTO counters VALUES ('experiment', 0), ('trial', 0)")
        row = (boot_id(), "cpu:0", 7, os.getpid(), process_identity(os.getpid()))
        old.run("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", row)
        asked = (*row[:1], 8, *row[3:], '["cpu:0"]', _slots._now())
        sql = "INSERT INTO waiting (boot, experiment_id, pid, born, devices, asked) VALUES"
        old.run(f"{sql} (?, ?, ?, ?, ?, ?)", asked)
    with Store(tmp_path) as store:
        assert store.slots.lease(9, 1, cpu(1)) is None
        (held,) = store.slots.queue().holding
        assert (held.experiment, held.priority, held.devices) == (7, 42, ("cpu:0",))
        assert store.slots.waiting() == [8, 9]


def test_unreleased_devices_are_released_with_the_next_update(
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


@pytest.mark.process
def test_a_birth_is_the_same_each_time_and_none_for_nobody(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    child = start("import sys; sys.stdin.read()")

    assert (
        process_identity(os.getpid())
        == process_identity(os.getpid())
        != process_identity(child.pid)
        is not None
    )
    assert process_identity(4194305) is None


@pytest.mark.process
def test_start_time_is_parsed_with_any_process_name(tmp_path: Path) -> None:
    (tmp_path / "a) R 1 (b").symlink_to("/bin/sleep")
    child = subprocess.Popen([tmp_path / "a) R 1 (b", "60"])
    try:
        birth = process_identity(child.pid)
        assert birth is not None
        assert birth.split()[0].isdigit()
        assert int(birth.split()[0]) >= int((process_identity(os.getpid()) or "").split()[0])
    finally:
        child.kill()
        child.wait()


TOTAL = 3
asks = st.tuples(st.just("ask"), st.integers(0, 2), st.integers(1, TOTAL))
releases = st.tuples(st.just("release"), st.integers(0, 2))


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
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

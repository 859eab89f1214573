"""The devices of this machine, leased by their ids to the drivers of a home."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import TypeVar

from det_core.errors import StoreError, StoreUnwritable
from det_core.process import born, is_running
from det_driver.store._database import Database
from det_driver.store._index import Index
from det_driver.store._locks import boot_id
from det_driver.store._records import Lease
from det_driver.store._schema import dump, load

T = TypeVar("T")
WAITING_SECONDS = 10.0
NEW_SECONDS = 5.0
"""How long nothing is leased from an index that was made again under drivers: by then each has said what it holds."""


class Slots:
    """Leases devices, such as `cuda:GPU-…` or `cpu:0`, first come, first served; no device is leased twice.

    Whoever is refused is put on the waiting list and keeps its place by asking again within `WAITING_SECONDS`. The
    free devices that an earlier one waits for are kept for it, so that a trial of two slots is not starved by trials of
    one. What dead processes held or waited for is taken back. An index that cannot be used leases nothing until it can.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._held: dict[int, set[str]] = {}
        self._said = False
        self._database: Database | None = None  # the index in which all that is held here has been said, and as whose
        self._said_as = (0, "")
        self.holder = os.getpid()
        """The process in whose name devices are leased, for as long as it lives."""

    def lease(self, experiment_id: int, slots: int, devices: Sequence[str], *, most: int | None = None) -> Lease | None:
        """Lease `slots` of `devices`, or None: ask again soon. No more than `most` are leased to an experiment at once."""
        return next(iter(self.leases(experiment_id, slots, devices, most=most)), None)

    def leases(
        self, experiment_id: int, slots: int, devices: Sequence[str], *, most: int | None = None, count: int = 1
    ) -> list[Lease]:
        """Lease `slots` of `devices` for each of `count` runs, or of as many as there are devices for."""
        total = len(devices)
        if slots > total:
            raise StoreError(f"slots_per_trial is {slots}, and this machine has {total} slots; ask for {total} at most")
        held = self._held.setdefault(experiment_id, set())
        if most is not None and slots:
            count = min(count, (most - len(held)) // slots)

        def take(database: Database, birth: str) -> list[list[str]]:
            made = database.row("SELECT value FROM counters WHERE name = 'made'")
            if made and slots and 0 <= time.time() - made[0] < NEW_SECONDS:
                return []
            me = (boot_id(), experiment_id, self.holder, birth)
            waits = database.row(
                "SELECT id FROM waiting WHERE boot = ? AND experiment_id = ? AND pid = ? AND born = ?", me
            )
            free = _available(database, waits[0] if waits else _LAST, [d for d in devices if d not in held])
            wanted = count - len(found)
            chosen = [
                free[k * slots : (k + 1) * slots] for k in range(min(wanted, len(free) // slots if slots else wanted))
            ]
            if waits and chosen:
                database.run("DELETE FROM waiting WHERE id = ?", waits)
            if len(chosen) < wanted:
                database.run(_ASK, (*me, dump([*devices]), _now()))
            for device in chain.from_iterable(chosen):
                database.run("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", (me[0], device, *me[1:]))
            return chosen

        found: list[list[str]] = []
        for attempt in (self._attempt, self._settled):  # the dead may hold some
            if len(found) < count:
                found += attempt(take) or []
                held.update(chain.from_iterable(found))
        places = {device: place for place, device in enumerate(devices)}
        return [Lease(experiment_id, tuple(places[device] for device in each), tuple(each)) for each in found]

    def hold(self, *leases: Lease) -> None:
        """Take up leases that the holder has had since an earlier driver."""
        for lease in leases:
            self._held.setdefault(lease.experiment_id, set()).update(lease.devices)
        self.keep()

    def release(self, *leases: Lease) -> None:
        """Give the devices back; again is harmless."""
        mine = [
            (device, lease.experiment_id)
            for lease in leases
            for device in lease.devices
            if device in self._held.get(lease.experiment_id, ())
        ]
        for device, experiment_id in mine:
            self._held[experiment_id].discard(device)

        def free(database: Database, birth: str) -> bool:
            sql = "DELETE FROM leases WHERE boot = ? AND device = ? AND experiment_id = ? AND pid = ? AND born = ?"
            for device, experiment_id in mine:
                database.put(sql, (boot_id(), device, experiment_id, self.holder, birth))
            return True

        if mine and self._attempt(free) is None:
            self.keep()

    def stop_waiting(self, experiment_id: int) -> None:
        """Leave the waiting list at once, not only when the place expires."""
        sql = "DELETE FROM waiting WHERE experiment_id = ? AND pid = ?"
        self._index.attempt(lambda database: database.run(sql, (experiment_id, self.holder)))

    def holders(self) -> dict[int, list[str]]:
        """The devices of this machine that are held, by the experiment whose driver holds them."""
        sql = "SELECT experiment_id, device FROM leases WHERE boot = ? ORDER BY experiment_id, device"
        found: dict[int, list[str]] = {}
        for experiment, device in self._index.attempt(lambda database: database.rows(sql, (boot_id(),))) or ():
            found.setdefault(experiment, []).append(device)
        return found

    def waiting(self) -> list[int]:
        """The experiments on the waiting list, the first one first."""
        sql = "SELECT experiment_id FROM waiting WHERE boot = ? ORDER BY id"
        rows = self._index.attempt(lambda database: database.rows(sql, (boot_id(),))) or ()
        return [experiment for (experiment,) in rows]

    def keep(self) -> None:
        """Say again what is held here: the index may have been made anew, or have been busy when it was told."""
        if self._held:
            self._settled(lambda database, birth: None)

    def _attempt(self, act: Callable[[Database, str], T]) -> T | None:
        """Do something in a transaction, where the index is the one that was settled before; None where it is not, or is busy."""
        (pid, birth), database = self._said_as, self._index.known
        if database is None or database is not self._database or pid != self.holder:
            return None
        with suppress(StoreError), database.transaction():
            return act(database, birth)
        return None

    def _settled(self, act: Callable[[Database, str], T]) -> T | None:
        """Do something in a transaction that first takes back what the dead held, and holds what is held here."""
        boot, pid = boot_id(), self.holder
        birth = born(pid) or ""

        def settle(database: Database) -> T:
            with database.transaction():
                sql = "SELECT pid, born FROM leases WHERE boot = ? UNION SELECT pid, born FROM waiting WHERE boot = ?"
                for other, others in database.rows(sql, (boot, boot)):
                    if not is_running(other, others):
                        for table in ("leases", "waiting"):
                            database.run(
                                f"DELETE FROM {table} WHERE boot = ? AND pid = ? AND born = ?", (boot, other, others)
                            )
                database.run("DELETE FROM waiting WHERE boot = ? AND asked < ?", (boot, _now() - WAITING_SECONDS))
                held = {(experiment, device) for experiment, devices in self._held.items() for device in devices}
                sql = "SELECT experiment_id, device FROM leases WHERE boot = ? AND pid = ? AND born = ?"
                there = {each for each in database.rows(sql, (boot, pid, birth)) if each[0] in self._held}
                for experiment, device in there - held:
                    sql = "DELETE FROM leases WHERE boot = ? AND experiment_id = ? AND device = ?"
                    database.run(sql, (boot, experiment, device))
                for experiment, device in held - there:
                    row = (boot, device, experiment, pid, birth)
                    database.run("INSERT OR IGNORE INTO leases VALUES (?, ?, ?, ?, ?)", row)
                done = act(database, birth)
            self._database, self._said_as = database, (pid, birth)
            return done

        try:
            return settle(self._index.database)
        except StoreError as error:
            done = self._index.attempt(settle)
            if done is None and isinstance(error, StoreUnwritable) and "locked" not in str(error):
                raise
            if done is None and not self._said and "locked" not in str(error):
                self._said = True
                sys.stderr.write(f"det: no device can be leased: {error}\n")
            return done


_LAST = 2**63 - 1
_ASK = """
INSERT INTO waiting (boot, experiment_id, pid, born, devices, asked) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET devices = excluded.devices, asked = excluded.asked
"""


def _available(database: Database, turn: int, devices: Sequence[str]) -> list[str]:
    leased = "SELECT device FROM leases WHERE boot = ? AND device IN (SELECT value FROM json_each(?))"
    taken = {device for (device,) in database.rows(leased, (boot_id(), dump([*devices])))}
    # What an earlier one could use is kept for it, whether it is free by now or not.
    for (wanted,) in database.rows("SELECT devices FROM waiting WHERE id < ? AND boot = ?", (turn, boot_id())):
        taken.update(load(wanted))
    return [device for device in devices if device not in taken]


def _now() -> float:
    # One clock for all processes of the machine, which nobody sets back.
    return time.clock_gettime(time.CLOCK_MONOTONIC)

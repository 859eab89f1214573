"""The devices of this machine, leased by their ids to the drivers of a home."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
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

    def lease(self, experiment_id: int, slots: int, devices: Sequence[str], *, most: int | None = None) -> Lease | None:
        """Lease `slots` of `devices`, or None: ask again soon. No more than `most` are leased to an experiment at once."""
        total = len(devices)
        if slots > total:
            raise StoreError(f"slots_per_trial is {slots}, and this machine has {total} slots; ask for {total} at most")
        held = self._held.setdefault(experiment_id, set())
        if most is not None and len(held) + slots > most:
            return None

        def take(database: Database, birth: str) -> list[str]:
            made = database.row("SELECT value FROM counters WHERE name = 'made'")
            if made and slots and 0 <= time.time() - made[0] < NEW_SECONDS:
                return []
            asked = (boot_id(), experiment_id, os.getpid(), birth, dump([*devices]), _now())
            ((turn,),) = database.rows(_ASK, asked)
            chosen = _available(database, turn, devices)[:slots]
            if len(chosen) == slots:
                database.run("DELETE FROM waiting WHERE id = ?", (turn,))
                for device in chosen:
                    row = (boot_id(), device, experiment_id, os.getpid(), birth)
                    database.run("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", row)
            return chosen

        chosen = self._settled(take)
        if chosen is None or len(chosen) < slots:
            return None
        held.update(chosen)
        return Lease(experiment_id, tuple(devices.index(device) for device in chosen), tuple(chosen))

    def release(self, lease: Lease) -> None:
        """Give the devices back; again is harmless."""
        self._held.get(lease.experiment_id, set()).difference_update(lease.devices)
        self.keep()

    def stop_waiting(self, experiment_id: int) -> None:
        """Leave the waiting list at once, not only when the place expires."""
        sql = "DELETE FROM waiting WHERE experiment_id = ? AND pid = ?"
        self._index.attempt(lambda database: database.run(sql, (experiment_id, os.getpid())))

    def keep(self) -> None:
        """Say again what is held here: the index may have been made anew, or have been busy when it was told."""
        if self._held:
            self._settled(lambda database, birth: None)

    def _settled(self, act: Callable[[Database, str], T]) -> T | None:
        """Do something in a transaction that first takes back what the dead held, and holds what is held here."""
        boot, pid = boot_id(), os.getpid()
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
                for experiment, devices in self._held.items():
                    sql = "DELETE FROM leases WHERE boot = ? AND experiment_id = ? AND pid = ? AND born = ?"
                    database.run(sql, (boot, experiment, pid, birth))
                    for device in devices:
                        row = (boot, device, experiment, pid, birth)
                        database.run("INSERT OR IGNORE INTO leases VALUES (?, ?, ?, ?, ?)", row)
                return act(database, birth)

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


_ASK = """
INSERT INTO waiting (boot, experiment_id, pid, born, devices, asked) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET devices = excluded.devices, asked = excluded.asked RETURNING id
"""


def _available(database: Database, turn: int, devices: Sequence[str]) -> list[str]:
    taken = {device for (device,) in database.rows("SELECT device FROM leases WHERE boot = ?", (boot_id(),))}
    # What an earlier one could use is kept for it, whether it is free by now or not.
    for (wanted,) in database.rows("SELECT devices FROM waiting WHERE id < ? AND boot = ?", (turn, boot_id())):
        taken.update(load(wanted))
    return [device for device in devices if device not in taken]


def _now() -> float:
    # One clock for all processes of the machine, which nobody sets back.
    return time.clock_gettime(time.CLOCK_MONOTONIC)

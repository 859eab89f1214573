"""What processes hold: an experiment, by its lock, and a machine's slots, by leases."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from det_core.errors import ExperimentBusy, StoreError
from det_driver.store._database import Database
from det_driver.store._records import Lease

WAITING_SECONDS = 10.0


class ExperimentLock:
    """Held from entering to leaving; the kernel releases it when the process dies, however it dies."""

    def __init__(self, experiment_id: int, directory: Path) -> None:
        self._experiment_id = experiment_id
        self._path = directory / "lock"
        self._file: int | None = None

    def __enter__(self) -> Self:
        self._file = self._open()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)
        except BlockingIOError as error:
            busy = self._busy(self._file)
            self.forget()
            raise busy from error
        except OSError as error:
            self.forget()
            raise self._unusable(error) from error
        # A flock belongs to the open file, which a child made by a bare fork would share and so keep locked.
        os.register_at_fork(after_in_child=_forget(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # at once, though a child may not have closed its copy yet
        self.forget()

    def forget(self) -> None:
        """Close the file and leave the lock to the process that took it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unusable(error) from error

    def _busy(self, file: int) -> ExperimentBusy:
        holder = os.pread(file, 32, 0).decode(errors="replace")
        return ExperimentBusy(
            f"experiment {self._experiment_id} is held by process {holder or 'unknown'}; "
            f"det pause {self._experiment_id} asks it to stop"
        )

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(f"cannot lock {self._path}: {error.strerror}; choose a home that you can write to")


def _forget(lock: ExperimentLock) -> Callable[[], None]:
    reference = weakref.ref(lock)

    def forget() -> None:
        held = reference()
        if held is not None:
            held.forget()

    return forget


class Slots:
    """The slots of this machine, first come, first served.

    Whoever is refused is put on the waiting list and keeps its place by asking again within `WAITING_SECONDS`. The
    free slots that an earlier one waits for are kept for it, so that a trial of two slots is not starved by trials of
    one. What dead processes held or waited for is taken back.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def lease(self, experiment_id: int, slots: int, total: int, pid: int | None = None) -> Lease | None:
        """Lease `slots` of the machine's `total`, or None: ask again soon. A process waits once per experiment."""
        if not 0 <= slots <= total:
            raise StoreError(f"slots_per_trial is {slots}, and this machine has {total} slots; ask for {total} at most")
        pid = os.getpid() if pid is None else pid
        birth = born(pid)
        if birth is None:
            raise StoreError(f"there is no process {pid} to lease slots to")
        with self._database.transaction():
            self._reclaim()
            turn = self._turn(experiment_id, pid, birth, total)
            chosen = self._available(turn, total)[:slots]
            if len(chosen) < slots:
                return None
            self._database.run("DELETE FROM waiting WHERE id = ?", (turn,))
            return self._grant(experiment_id, pid, birth, chosen)

    def release(self, lease: Lease) -> None:
        """Give the slots back; again is harmless."""
        self._database.run("DELETE FROM leases WHERE id = ?", (lease.id,))

    def stop_waiting(self, experiment_id: int, pid: int | None = None) -> None:
        """Leave the waiting list at once, not only when the place expires."""
        self._database.run(
            "DELETE FROM waiting WHERE experiment_id = ? AND pid = ?",
            (experiment_id, os.getpid() if pid is None else pid),
        )

    def leased(self) -> list[Lease]:
        """All leases of processes that are alive."""
        taken: dict[int, list[int]] = {}
        for slot, lease_id in self._database.rows("SELECT slot, lease_id FROM slots ORDER BY slot"):
            taken.setdefault(lease_id, []).append(slot)
        rows = self._database.rows("SELECT id, experiment_id, pid, born FROM leases ORDER BY id")
        return [Lease(id, of, tuple(taken.get(id, ())), pid) for id, of, pid, birth in rows if born(pid) == birth]

    def _reclaim(self) -> None:
        holders = self._database.rows("SELECT pid, born FROM leases UNION SELECT pid, born FROM waiting")
        for pid, birth in holders:
            if born(pid) != birth:
                self._database.run("DELETE FROM leases WHERE pid = ? AND born = ?", (pid, birth))
                self._database.run("DELETE FROM waiting WHERE pid = ? AND born = ?", (pid, birth))
        self._database.run("DELETE FROM waiting WHERE asked < ?", (_now() - WAITING_SECONDS,))

    def _turn(self, experiment_id: int, pid: int, birth: str, total: int) -> int:
        try:
            row = self._database.row(
                "INSERT INTO waiting (experiment_id, pid, born, total, asked) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET total = excluded.total, asked = excluded.asked RETURNING id",
                (experiment_id, pid, birth, total, _now()),
            )
        except sqlite3.IntegrityError as error:
            raise StoreError(f"no experiment {experiment_id}; create it before it leases slots") from error
        assert row is not None  # RETURNING gives the row or raises
        return int(row[0])

    def _available(self, turn: int, total: int) -> list[int]:
        taken = {slot for (slot,) in self._database.rows("SELECT slot FROM slots")}
        earlier = self._database.rows("SELECT max(total) FROM waiting WHERE id < ?", (turn,))[0][0]
        # Slots below `earlier` are kept for those who came first, whether they are free by now or not.
        return [slot for slot in range(earlier or 0, total) if slot not in taken]

    def _grant(self, experiment_id: int, pid: int, birth: str, chosen: list[int]) -> Lease:
        id = self._database.run(
            "INSERT INTO leases (experiment_id, pid, born) VALUES (?, ?, ?)", (experiment_id, pid, birth)
        ).lastrowid
        assert id is not None  # an INSERT sets it
        for slot in chosen:
            self._database.run("INSERT INTO slots VALUES (?, ?)", (slot, id))
        return Lease(id, experiment_id, tuple(chosen), pid)


def _now() -> float:
    # One clock for all processes of the machine, which nobody sets back.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def boot_id() -> str:
    """What tells this start of the machine from every other; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def born(pid: int) -> str | None:
    """When the process started, in the system's own terms; None where there is no such process, or only its corpse."""
    if sys.platform != "linux":
        return _born_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may hold anything; count from its end.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else f"{boot_id()} {fields[18]}"


def _born_by_ps(pid: int) -> str | None:
    import subprocess

    answer = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()

"""The journal of an experiment, the snapshots of its search, and what people ask of its driver, which runs in another process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from det_core.errors import StoreError
from det_driver.store._checkpoints import FORGET, record_deleted
from det_driver.store._databases import Databases
from det_driver.store._records import CommandRow, Event, Snapshot
from det_driver.store._schema import dump

PAGE = 2000
_SETTLED_NS = 2_000_000_000
_command = msgspec.json.Decoder(CommandRow).decode


class Journal:
    """The journals of a home's experiments; each is written by the driver that holds its experiment's lock."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def append(self, experiment_id: int, event: bytes | str) -> int:
        """Append one event, JSON; returns its number, 1, 2, 3 ... without a gap."""
        database = self._databases.of(experiment_id)
        with database.joined:
            if database.memory.event is None:
                database.memory.event = database.rows("SELECT coalesce(max(seq), 0) FROM journal")[0][0]
            seq = database.memory.event + 1
            text = event if isinstance(event, str) else event.decode()
            database.put("INSERT INTO journal (seq, time, event) VALUES (?, ?, ?)", (seq, time.time(), text))
            database.memory.event = seq
        return seq

    def read(self, experiment_id: int, after: int = 0, *, having: str = "") -> Iterator[Event]:
        """Stream the events whose number is above `after`, in order; only those with the text `having`, where it is given."""
        such = "AND instr(event, ?)" if having else ""
        sql = f"SELECT seq, time, event FROM journal WHERE seq > ? {such} ORDER BY seq LIMIT ?"
        while True:
            rows = self._databases.of(experiment_id).rows(sql, (after, *filter(None, [having]), PAGE))
            for seq, at, event in rows:
                yield Event(seq, at, event.encode())
            if len(rows) < PAGE:
                return
            after = rows[-1][0]


class Snapshots:
    """Searches as they were after one event or another of their journals, the newest two of each experiment."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def keep(self, experiment_id: int, snapshot: Snapshot) -> None:
        """Add one."""
        database = self._databases.of(experiment_id)
        with database.transaction():
            database.run("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", msgspec.structs.astuple(snapshot))
            database.run(
                "DELETE FROM snapshots WHERE seq < (SELECT max(seq) FROM snapshots WHERE seq < ?)", (snapshot.seq,)
            )

    def read(self, experiment_id: int) -> list[Snapshot]:
        """Those that there are, the newest first."""
        sql = "SELECT seq, det, format, version, state FROM snapshots ORDER BY seq DESC"
        return [Snapshot(*row) for row in self._databases.of(experiment_id).rows(sql)]

    def forget(self, experiment_id: int) -> None:
        """Drop all of them: the journal is to be replayed."""
        self._databases.of(experiment_id).run("DELETE FROM snapshots")


class CommandQueue:
    """The commands that wait for the drivers of a home: files in their experiments' directories, each whole or not there."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._seen: dict[int, int] = {}  # when each directory was last changed, once that is settled

    def send(self, experiment_id: int, kind: str, args: Mapping[str, Any] | None = None) -> None:
        """Leave a command for the experiment's driver, now or when there is one."""
        self._databases.of(experiment_id)
        place = self._place(experiment_id)
        text = dump({"kind": kind, "args": dict(args or {}), "sent": time.time()})
        name = f"{time.time_ns():020}-{os.urandom(4).hex()}"
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            (place / f".{name}").write_text(text, encoding="utf-8")
            os.rename(place / f".{name}", place / f"{name}.json")
        except OSError as error:
            raise StoreError(f"cannot write to {place}: {error.strerror}; check the home's rights") from error

    def names(self, experiment_id: int) -> set[str]:
        """Return the names of those that have not been taken yet."""
        return {each.name for each in self._place(experiment_id).glob("*.json")}

    def forget(self, experiment_id: int, names: Collection[str]) -> None:
        """Take back commands that were left for a driver that is gone; those that record what was deleted stay."""
        for name in names:
            with suppress(OSError, ValueError):
                place = self._place(experiment_id) / name
                if json.loads(place.read_bytes())["kind"] != FORGET:
                    place.unlink()

    def take(self, experiment_id: int) -> list[CommandRow]:
        """Take those that wait, oldest first; in one transaction with their effect, each counts exactly once.

        Checkpoints that others have deleted are recorded as such on the way.
        """
        place = self._place(experiment_id)
        try:
            changed = place.stat().st_mtime_ns
        except OSError:
            return []
        if self._seen.get(experiment_id) == changed:
            return []
        with self._databases.of(experiment_id).transaction():
            found = self._take(place, experiment_id)
        # Two changes within one tick of the clock leave one time: a directory that has just changed is looked at again.
        if not found and abs(time.time_ns() - changed) > _SETTLED_NS:
            self._seen[experiment_id] = changed
        return found

    def _take(self, place: Path, experiment_id: int) -> list[CommandRow]:
        database = self._databases.of(experiment_id)
        names = sorted(each.name for each in place.glob("*.json"))
        taken = {name for (name,) in database.rows("SELECT name FROM taken")}
        found = []
        for name in names:
            if name not in taken:
                with suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
                    command = _command((place / name).read_bytes())
                    if command.kind == FORGET:
                        record_deleted(database, **command.args)
                    else:
                        found.append(command)
                database.run("INSERT INTO taken VALUES (?)", (name,))
            # A driver that is killed before it has removed the file finds its name here, and the command counts once.
            database.afterwards(lambda file=place / name: file.unlink(missing_ok=True))  # type: ignore[misc]
        for name in taken.difference(names):
            database.run("DELETE FROM taken WHERE name = ?", (name,))
        return found

    def _place(self, experiment_id: int) -> Path:
        return self._databases.directory(experiment_id) / "commands"

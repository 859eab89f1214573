"""The journal of an experiment, the snapshots of its search, and the commands for its driver.

Other processes send the commands.
"""

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
from det_core.support.paths import read_regular
from det_driver.store._checkpoints import FORGET, record_deleted
from det_driver.store._databases import Databases
from det_driver.store._records import CommandRow, Event, Snapshot
from det_driver.store._schema import convert, dump
from det_driver.store._wakeups import COMMAND, wake

DESCRIBE_COMMAND = "describe"
"""The command that changes an experiment's name, description and labels."""
PAGE = 2000
_events = msgspec.json.Decoder(list[tuple[int, float, str]])
_QUIET_NS = 2_000_000_000
_FOLDER = "commands"
_command = msgspec.json.Decoder(CommandRow).decode


class Journal:
    """The journals of a home's experiments.

    The driver that holds an experiment's lock writes its journal.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def append(self, experiment_id: int, event: bytes | str) -> int:
        """Append one event, as JSON, and return its number: 1, 2, 3, … without a gap."""
        database = self._databases.of(experiment_id)
        with database.joined:
            if database.memory.event is None:
                database.memory.event = database.rows("SELECT coalesce(max(seq), 0) FROM journal")[
                    0
                ][0]
            seq = database.memory.event + 1
            text = event if isinstance(event, str) else event.decode()
            database.put(
                "INSERT INTO journal (seq, time, event) VALUES (?, ?, ?)", (seq, time.time(), text)
            )
            database.memory.event = seq
        return seq

    def read(self, experiment_id: int, after: int = 0, *, having: str = "") -> Iterator[Event]:
        """Stream the events whose number is above `after`, in order.

        If `having` is given, only events that contain this text are returned.
        """
        such = "AND instr(event, ?)" if having else ""
        sql = (
            # Both texts are constants; values are parameters.
            f"SELECT seq, time, event FROM journal WHERE seq > ? {such} ORDER BY seq LIMIT ?"  # nosec B608
        )
        while True:
            database = self._databases.of(experiment_id)
            rows = database.rows(sql, (after, *filter(None, [having]), PAGE))
            with database.decoding():
                events = [
                    Event(seq, at, event.encode()) for seq, at, event in convert(rows, _events.type)
                ]
            yield from events
            if len(rows) < PAGE:
                return
            after = rows[-1][0]


class Snapshots:
    """The newest two snapshots of the search of each experiment."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def keep(self, experiment_id: int, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        database = self._databases.of(experiment_id)
        with database.transaction():
            database.run(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)",
                msgspec.structs.astuple(snapshot),
            )
            database.run(
                "DELETE FROM snapshots WHERE seq < (SELECT max(seq) FROM snapshots WHERE seq < ?)",
                (snapshot.seq,),
            )

    def read(self, experiment_id: int) -> list[Snapshot]:
        """Return the snapshots, the newest first."""
        sql = "SELECT seq, det, format, version, state FROM snapshots ORDER BY seq DESC"
        # The state may have any type: a snapshot that cannot be decoded is skipped later.
        rows = self._databases.of(experiment_id).typed(tuple[int, str, int, int, Any], sql)
        return [Snapshot(*row) for row in rows]

    def forget(self, experiment_id: int) -> None:
        """Delete all snapshots, so that the whole journal is replayed."""
        self._databases.of(experiment_id).run("DELETE FROM snapshots")


class CommandQueue:
    """The commands that wait for the drivers of a home.

    Each is a file in its experiment's directory, which appears as a whole.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        # The time of the last change of each directory, once it is long enough ago.
        self._seen: dict[int, int] = {}

    def send(self, experiment_id: int, kind: str, args: Mapping[str, Any] | None = None) -> None:
        """Send a command to the experiment's present or next driver."""
        self._databases.of(experiment_id)
        place = self._place(experiment_id)
        text = dump({"kind": kind, "args": dict(args or {}), "sent": time.time()})
        name = f"{time.time_ns():020}-{os.urandom(4).hex()}"
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            (place / f".{name}").write_text(text, encoding="utf-8")
            os.rename(place / f".{name}", place / f"{name}.json")
        except OSError as error:
            raise StoreError(
                f"cannot write to {place}: {error.strerror}; check the home's rights"
            ) from error
        wake(self._databases.home, [experiment_id], COMMAND)

    def names(self, experiment_id: int) -> set[str]:
        """Return the names of the commands that no driver has taken yet."""
        # Each driver asks four times a second.
        place = f"{self._databases.directory(experiment_id)}/{_FOLDER}"
        with suppress(FileNotFoundError):
            return {name for name in os.listdir(place) if name.endswith(".json")}
        return set()

    def deleted(self, experiment_id: int) -> set[str]:
        """Return the uuids of deleted checkpoints that the driver has not recorded yet."""
        found = set()
        for file in self._place(experiment_id).glob("*.json"):
            # The driver may just have removed it.
            with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                command = _command(read_regular(file))
                if command.kind == FORGET:
                    found.add(str(command.args.get("uuid")))
        return found

    def forget(self, experiment_id: int, names: Collection[str], but: Collection[str] = ()) -> None:
        """Withdraw commands for a driver that is gone.

        Those that record a deletion, and those of the kinds `but`, wait for the next driver.
        """
        for name in names:
            with suppress(OSError, ValueError):
                place = self._place(experiment_id) / name
                if json.loads(read_regular(place))["kind"] not in (FORGET, *but):
                    place.unlink()

    def take(self, experiment_id: int, kind: str | None = None) -> list[CommandRow]:
        """Take the commands that wait, the oldest first. With `kind`, leave those of other kinds.

        In one transaction with its effect, each command counts exactly once. Commands that record
        the deletion of a checkpoint are carried out here.
        """
        place = self._place(experiment_id)
        try:
            changed = place.stat().st_mtime_ns
        except OSError:
            return []
        if self._seen.get(experiment_id) == changed:
            return []
        with self._databases.of(experiment_id).transaction():
            found = self._take(place, experiment_id, kind)
        # Two changes within one tick of the clock leave the same time. So read a directory again
        # that has just changed.
        if kind is None and not found and abs(time.time_ns() - changed) > _QUIET_NS:
            self._seen[experiment_id] = changed
        return found

    def _take(self, place: Path, experiment_id: int, kind: str | None) -> list[CommandRow]:
        database = self._databases.of(experiment_id)
        names = sorted(each.name for each in place.glob("*.json"))
        handled = {name for (name,) in database.rows("SELECT name FROM taken")}
        found = []
        for name in names:
            if name not in handled:
                with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                    command = _command(read_regular(place / name))
                    if kind not in (None, command.kind):
                        continue
                    if command.kind == FORGET:
                        record_deleted(database, **command.args)
                    else:
                        found.append(command)
                database.run("INSERT INTO taken VALUES (?)", (name,))
            # If the driver is killed before it removes the file, its name is in `taken`, and the
            # command counts once.
            database.afterwards(lambda file=place / name: file.unlink(missing_ok=True))  # type: ignore[misc]
        for name in handled.difference(names):
            database.run("DELETE FROM taken WHERE name = ?", (name,))
        return found

    def _place(self, experiment_id: int) -> Path:
        return self._databases.directory(experiment_id) / _FOLDER

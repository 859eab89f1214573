"""Sends the recordings of a home to where they are wanted: a server, or another home."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from det_core.errors import DetError, StoreError
from det_core.support.threads import start_thread

from ..provenance import read as read_origin
from ..remote import Lost, Refusal, RemoteServer, SignIns
from ..store import Store
from ._experiment import (
    CheckpointRecord,
    Identifiers,
    ReportRecord,
    digest_of,
    every_recorded,
    name_recording,
    read_event,
    read_identifiers,
    warn,
)
from ._taking import Accepted, ScriptFile, Take, Taking, receive_into_home

PATH = "/recordings"
"""The endpoint of a server that takes up recordings, below the root of its API."""
MOST_BYTES = 4 << 20
"""The longest request with events. One event may have about as much."""
_BATCH_BYTES = 512 << 10
_LONGEST_SCRIPT, _LONGEST_DIFF = 300_000, 200_000
_ASK_SECONDS, _FINISH_SECONDS = 5.0, 5.0
"""How long a script waits for a server at its begin, if its trial has an identifier, and at its
end."""
_BEAT_SECONDS = 10.0
_GATHER_SECONDS = 1.0
_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_accepted = msgspec.json.Decoder(Accepted)
_LATER = {408, 425, 429, 500, 502, 503, 504, 507}
"""The statuses of a server that may take the same later."""
_SILENT_SECONDS = 30.0
"""How long a server may need for one request of a script that runs."""


def send_to_server(server: RemoteServer) -> Take:
    """Return what has a server take up recordings."""

    def take(given: Taking) -> Accepted:
        try:
            reply = server.post(PATH, msgspec.to_builtins(given))
        except Refusal as error:
            is_old = error.status in (404, 405) or str(error).startswith("only an admin may do")
            if is_old:
                raise DetError(
                    f"the det server at {server.address} takes up no recordings yet; upgrade it"
                ) from None
            raise
        try:
            return msgspec.convert(reply, _accepted.type)
        except msgspec.ValidationError:
            raise DetError(
                f"there is no det server at {server.address}; check the address"
            ) from None

    return take


@dataclass
class Sent:
    """What was sent of a recording."""

    reports: int = 0
    checkpoints: int = 0


class Outgoing:
    """A recording of a home, and how far it is taken up elsewhere.

    It reads the home while a script writes there. Raises StoreError for an experiment that no
    script has recorded.
    """

    def __init__(self, home: Path, id: int, take: Take, *, trial: str | None = None) -> None:
        self.id = id
        self.experiment = 0
        self.seq = 0
        self.is_here = False
        self.sent = Sent()
        self._home = home
        self._take = take
        self._trial = trial
        self._has_origin = False
        self._first = True
        self._digest = ""

    def step(self, store: Store, *, is_alive: bool = False, counts: bool = False) -> bool:
        """Send the next events, if there are any, and return whether there may be more.

        Raises DetError where they are refused, and Lost where it is not known.
        """
        ids = read_identifiers(store.experiment_dir(self.id)) or Identifiers()
        if not ids.uid:
            raise StoreError(_why_not(store, self.id, ids))
        # The first request asks how far it is.
        events = [] if self._first else self._read(store)
        origin = {} if self._has_origin or self.is_here else self._origin(store)
        given = Taking(
            id=ids.uid,
            config=store.experiments.get(self.id).config,
            experiment=ids.experiment,
            trial=self._trial,
            after=self.seq,
            events=events,
            is_alive=is_alive,
            **origin,
        )
        accepted = self._take(given)
        self.experiment, self.is_here = accepted.experiment, accepted.is_here
        self._has_origin = accepted.has_origin
        self.latest = (accepted.checkpoint, accepted.batches) if accepted.checkpoint else None
        if accepted.is_here:
            return False
        was_first, self._first = self._first, False
        if counts and accepted.seq >= self.seq:
            self._count(events[: accepted.seq - self.seq])
        # A server that has lost its last events, as by a power cut, gets them again.
        goes_back, self.seq = accepted.seq < self.seq, accepted.seq
        if was_first:
            self._check_digest(store, accepted)
        return was_first or goes_back or bool(events)

    def _read(self, store: Store) -> list[str]:
        events, size = list[str](), 0
        for event in store.journal.read(self.id, self.seq):
            if events and size + len(event.data) > _BATCH_BYTES:
                break
            events.append(event.data.decode())
            size += len(event.data)
        return events

    def _check_digest(self, store: Store, accepted: Accepted) -> None:
        """Raise DetError if another copy of this recording has gone on."""
        if not accepted.seq:
            return
        last = next(iter(store.journal.read(self.id, accepted.seq - 1)), None)
        if last is None or digest_of(last.data) != accepted.digest:
            raise DetError(
                f"experiment {self.id} of {self._home} is older than what was taken up of it, or"
                " differs: another copy of this directory has gone on; send that one"
            )

    def _origin(self, store: Store) -> dict[str, Any]:
        """Return what ran, and where, once that is known."""
        directory = store.experiment_dir(self.id)
        found = read_origin(directory)
        if not found:
            return {}
        if git := found.get("git"):
            found["git"] = {**git, "diff": git.get("diff", "")[:_LONGEST_DIFF]}
        given: dict[str, Any] = {"origin": found}
        for path in sorted((directory / "code").glob("*"))[:1]:
            with suppress(OSError, UnicodeDecodeError):
                if path.stat().st_size <= _LONGEST_SCRIPT:
                    given["script"] = ScriptFile(path.name, path.read_text(encoding="utf-8"))
        return given

    def _count(self, events: list[str]) -> None:
        for text in events:
            records = read_event(text).records
            self.sent.reports += sum(isinstance(each, ReportRecord) for each in records)
            self.sent.checkpoints += sum(isinstance(each, CheckpointRecord) for each in records)


def _why_not(store: Store, id: int, ids: Identifiers) -> str:
    # Raises StoreError if there is no such experiment.
    experiment = store.experiments.get(id)
    if not experiment.outside:
        return f"experiment {id} was not recorded by a script; take it along with det export {id}"
    if ids.sources:
        return (
            f"experiment {id} was recorded elsewhere; send it from there, or take it along with det"
            f" export {id}"
        )
    return f"experiment {id} was recorded by an earlier det; take it along with det export {id}"


class Sending:
    """Sends the recording of a script that runs to a server, in a thread.

    The script waits for it at its end alone, and for `ask`.
    """

    def __init__(self, home: Path, id: int, address: str, trial: str | None) -> None:
        self._home = home
        self._id = id
        self._address = address
        self._trial = trial
        self._asked, self._ended = threading.Event(), threading.Event()
        self._woken, self._finishing = threading.Event(), threading.Event()
        self._latest: tuple[str, int] | None = None
        self._is_complete = False
        self._has_warned = False
        start_thread(self._work, name="det-sending")

    def ask(self) -> tuple[str, int] | None:
        """Return the latest checkpoint and its position, if the trial was continued elsewhere.

        None also where the server does not say so within some seconds.
        """
        self._asked.wait(_ASK_SECONDS)
        return self._latest

    def wake(self) -> None:
        """Send what has been written since."""
        self._woken.set()

    def finish(self) -> None:
        """Send the rest for some seconds, and say how to send what is left then."""
        self._finishing.set()
        self._woken.set()
        self._ended.wait(_FINISH_SECONDS)
        if not self._is_complete and not self._has_warned:
            self._has_warned = True
            warn(f"not everything was sent to {self._address}; send the rest: {self._later}")

    @property
    def _later(self) -> str:
        return f"det -m {self._address} sync {name_recording(self._home, self._id)}"

    def _work(self) -> None:
        try:
            self._send()
        except DetError as error:
            # The script goes on, and its records remain in the home.
            if not self._has_warned:
                self._has_warned = True
                warn(f"no more is sent to {self._address}: {error}; send it later: {self._later}")
        finally:
            self._asked.set()
            self._ended.set()

    def _send(self) -> None:
        token = SignIns(os.environ).get(self._address).token
        take = send_to_server(RemoteServer(self._address, token, seconds=_SILENT_SECONDS))
        outgoing = Outgoing(self._home, self._id, take, trial=self._trial)
        failures, is_known = 0, False
        with Store.reader(self._home) as store:
            while True:
                finishes = self._finishing.is_set()
                self._woken.clear()
                try:
                    more = outgoing.step(store, is_alive=not finishes)
                except Lost as error:
                    failures, more = self._fail(str(error), failures), True
                    continue
                except Refusal as error:
                    if error.status not in _LATER:
                        raise
                    failures, more = self._fail(str(error), failures), True
                    continue
                failures = 0
                if not is_known:
                    is_known = True
                    self._latest = outgoing.latest
                    self._asked.set()
                    here = outgoing.experiment
                    warn(f"this run is experiment {here} of {self._address}: det show {here}")
                if outgoing.is_here or (finishes and not more):
                    self._is_complete = True
                    return
                if not more:
                    self._wait(_BEAT_SECONDS)
                    # Reports that follow one another are sent together.
                    self._finishing.wait(_GATHER_SECONDS)

    def _fail(self, problem: str, failures: int) -> int:
        """Wait before another attempt. The first failure in a row is said."""
        self._asked.set()
        if not failures and not self._has_warned:
            warn(f"{problem}; what is recorded is sent as soon as possible")
        self._finishing.wait(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
        if self._finishing.is_set():
            time.sleep(_GATHER_SECONDS)
        return failures + 1

    def _wait(self, seconds: float) -> None:
        self._woken.wait(seconds)


def wanted_recordings(home: Path, address: str) -> list[int]:
    """Return the experiments of a home that are for a server, or were recorded offline."""
    return [id for id, ids in every_recorded(home) if ids.uid and ids.wanted in ("", address)]


def recordings(home: Path) -> list[int]:
    """Return all experiments that a home has recorded."""
    return [id for id, ids in every_recorded(home) if ids.uid]


@dataclass(frozen=True)
class Synced:
    """What became of a recording: its number there, and what was sent of it now."""

    id: int
    experiment: int
    is_here: bool
    sent: Sent


def sync(
    home: Path,
    id: int,
    target: Path | str,
    environ: Mapping[str, str],
    progress: Callable[[Sent], object] = lambda sent: None,
) -> Synced:
    """Have a home, or the server at an address, take up a recording.

    Raises DetError where it is not taken up as a whole. It may be repeated, also after a kill.
    """
    receiver = None
    if isinstance(target, Path):
        take, receiver = receive_into_home(target)
    else:
        take = send_to_server(RemoteServer(target, SignIns(environ).get(target).token))
    try:
        with Store.reader(home) as store:
            outgoing = Outgoing(home, id, take)
            while outgoing.step(store, counts=True):
                progress(outgoing.sent)
    finally:
        if receiver is not None:
            receiver.release(all=True)
    return Synced(id, outgoing.experiment, outgoing.is_here, outgoing.sent)

"""Records scripts that det did not start: each is the writer of an experiment of the home.

A thread holds the experiment's lock as a driver does, and commits what the script reports in
batches. The script never waits for a disk, except after a checkpoint and at its end.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from det_core.checkpoint.manifest import Manifest
from det_core.config import find_secrets, masked, masked_hparams
from det_core.errors import DetError, StoreError, StoreUnwritable
from det_core.hooks.recording import OutsideRun, Recorded
from det_core.support.threads import start_thread
from det_core.train.host import Outcome

from ..provenance import gather
from ..provenance import write as write_provenance
from ..store import OUTSIDE, Store
from ._experiment import (
    FILE,
    CheckpointRecord,
    DeletionRecord,
    EndRecord,
    Identifiers,
    ProgressRecord,
    RecordedExperiment,
    ReportRecord,
    ScriptRecord,
    find_recorded,
    name_recording,
    read_identifiers,
    warn,
    write_identifiers,
)

if TYPE_CHECKING:
    from ._sending import Sending

_GUARD = ".outside.lock"
"""Whoever looks for an experiment by its identifier, and makes it, holds this lock."""
_POLL_SECONDS, _GATHER_SECONDS = 1.0, 0.2
_OPEN_SECONDS, _COMMIT_SECONDS, _CLOSE_SECONDS = 60.0, 40.0, 3.0
"""How long a script waits for its experiment, a commit, and at its end for a disk that fails."""
_ORIGIN_SECONDS = 1.0
"""How long a script waits at its end for Git, which may need long in a large repository."""
_MOST_KEPT = 100_000
"""The most records that wait in memory for a home that cannot be written."""
LARGEST_SCRIPT = 1_000_000
"""A larger file of a script is left out."""


def record(run: OutsideRun) -> ScriptRecording | None:
    """Begin the record of a run. None, after a warning, where the home cannot be written."""
    server, problem = _choose_server(run)
    recording = ScriptRecording(run, server, sends=not problem)
    if recording.failure is not None:
        warn(f"this run is not recorded: {recording.failure}; it goes on")
        return None
    id = recording.recorded.experiment_id
    where, how = f"experiment {id} of {run.home}", f"det sync {name_recording(run.home, id)}"
    if run.offline:
        warn(f"this run is {where}; send it later: {how}")
    elif problem:
        warn(
            f"this run is {where}; nothing is sent to {server}: {problem}; after that, send it:"
            f" {how}"
        )
    elif server:
        warn(f"this run is {where}, and is sent to {server}")
    else:
        warn(f"this run is experiment {id}: det show {id}")
    return recording


def _choose_server(run: OutsideRun) -> tuple[str, str]:
    """Return the server that commands would act on, and why nothing can be sent there."""
    if run.offline:
        return "", ""
    from ..remote import SignIns, chosen_server

    try:
        server = chosen_server(None, os.environ)
    except DetError as error:
        warn(f"this run is recorded on this machine only: {error}")
        return "", ""
    try:
        if server:
            SignIns(os.environ).get(server)
    except DetError as error:
        return server, str(error)
    return server, ""


class ScriptRecording:
    """The record of one run: a queue, and the thread that writes what is in it.

    `failure` says why there is no record. A forked process has none.
    """

    def __init__(self, run: OutsideRun, server: str = "", *, sends: bool = True) -> None:
        self.recorded = Recorded()
        self._server = server
        self._sends = sends and bool(server)
        self._sending: Sending | None = None
        self.failure: str | None = None
        self._run, self._pid = run, os.getpid()
        self._inbox: queue.SimpleQueue[tuple[ScriptRecord | None, threading.Event | None]] = (
            queue.SimpleQueue()
        )
        self._opened, self._ended = threading.Event(), threading.Event()
        self._finished = False
        self._kept: list[ScriptRecord] = []
        self._lost = 0
        try:
            start_thread(self._work, name="det-recording")
        except OSError as error:
            self.failure = str(error)
            return
        if not self._opened.wait(_OPEN_SECONDS):
            self.failure = f"{run.home} does not answer"
        if self.failure is None:
            atexit.register(self.close)

    # The script's threads

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self._put(ReportRecord(group, batches, dict(metrics)))

    def checkpointed(self, manifest: Manifest, storage: str) -> None:
        size = sum(file.size for file in manifest.files.values())
        metadata, batches = dict(manifest.metadata), manifest.batches
        self._put(
            CheckpointRecord(manifest.uuid, batches, storage, size, metadata, manifest.framework),
            waits=True,
        )

    def deleted(self, uuid: str) -> None:
        if self.failure is not None or os.getpid() != self._pid:
            return
        with Store.reader(self._run.home) as store, store.models.deleting():
            # No model gets it before the record is written.
            store.models.check_free([uuid])
            self._put(DeletionRecord(uuid), waits=True)

    def progress(self, fraction: float) -> None:
        self._put(ProgressRecord(fraction))

    def finished(self, outcome: Outcome, message: str, traceback: str) -> None:
        if not self._finished:
            self._finished = True
            self._put(EndRecord(outcome, message, traceback), waits=True)

    def close(self) -> None:
        if os.getpid() == self._pid and not self._ended.is_set():
            self._inbox.put((None, None))
            self._ended.wait(_COMMIT_SECONDS)
            if self._sending is not None:
                self._sending.finish()
        atexit.unregister(self.close)

    def _put(self, record: ScriptRecord, *, waits: bool = False) -> None:
        if os.getpid() != self._pid or self._ended.is_set():
            return
        done = threading.Event() if waits else None
        self._inbox.put((record, done))
        if done is not None:
            deadline = time.monotonic() + _COMMIT_SECONDS
            # The thread may have failed.
            while not done.wait(_GATHER_SECONDS) and not self._ended.is_set():
                if time.monotonic() > deadline:
                    return

    # The thread

    def _work(self) -> None:
        try:
            with Store(self._run.home) as store, ExitStack() as held:
                experiment = _open(store, self._run, self._server, held)
                self.recorded = self._describe(experiment)
                self._opened.set()
                directory = store.experiment_dir(experiment.id)
                origin = start_thread(_keep_origin, directory, self._run, name="det-origin")
                held.callback(origin.join, _ORIGIN_SECONDS)
                self._write_all(experiment)
        except (StoreError, OSError) as error:
            self._fail(error)
        except BaseException as error:
            # Before the script learns that the experiment is open.
            self._fail(error)
            raise
        finally:
            self._opened.set()
            self._ended.set()

    def _describe(self, experiment: RecordedExperiment) -> Recorded:
        """Return where the run is recorded, and begin to send it.

        A server may know of a later run of the trial, on another machine.
        """
        trial, store = experiment.trial, experiment.store
        latest = trial.latest_checkpoint
        batches = store.checkpoints.get(latest).batches if latest else 0
        if self._sends and experiment.uid:
            from ._sending import Sending

            self._sending = Sending(self._run.home, experiment.id, self._server, self._run.trial)
            # Only a trial with an identifier may have been continued elsewhere.
            if self._run.trial is not None and (found := self._sending.ask()) is not None:
                latest, batches = found
        return Recorded(
            experiment_id=experiment.id,
            trial_id=trial.id,
            run_number=trial.runs + 1,
            latest_checkpoint=latest,
            steps_completed=batches,
        )

    def _fail(self, error: BaseException) -> None:
        if self._opened.is_set():
            warn(
                f"experiment {self.recorded.experiment_id} is not recorded any more: {error}; the"
                " script goes on, and its further reports are lost"
            )
        else:
            self.failure = str(error)

    def _write_all(self, experiment: RecordedExperiment) -> None:
        closes, warned, until = False, False, 0.0
        while not closes or (self._kept and time.monotonic() < until):
            records, waiting, closed = self._gather()
            if closed:
                closes, until = True, time.monotonic() + _CLOSE_SECONDS
            self._kept += records
            try:
                experiment.write(self._kept)
                self._kept.clear()
                if self._sending is not None:
                    self._sending.wake()
                if warned:
                    warn(f"{self._run.home} can be written again, and nothing is lost")
                    warned = False
            except StoreUnwritable as error:
                if not warned:
                    warned = True
                    warn(f"{error}; the script goes on, and det tries again to record it")
                self._lost += len(self._kept[_MOST_KEPT:])
                del self._kept[_MOST_KEPT:]
            except Exception:
                self._write_each(experiment)
            for event in waiting:
                event.set()
        if self._kept or self._lost:
            more = f", and {self._lost} later ones" if self._lost else ""
            warn(f"not recorded of experiment {experiment.id}: {_described(self._kept)}{more}")

    def _write_each(self, experiment: RecordedExperiment) -> None:
        """Write the records one by one, and leave out those that the store refuses."""
        left, self._kept = self._kept, []
        for number, each in enumerate(left):
            try:
                experiment.write([each])
            except StoreUnwritable:
                self._kept = left[number:]
                return
            except Exception as error:
                # It costs this record alone.
                warn(f"{_described([each])} is not recorded: {error}")

    def _gather(self) -> tuple[list[ScriptRecord], list[threading.Event], bool]:
        """Wait for records, and return all that come soon after the first."""
        records, waiting = list[ScriptRecord](), list[threading.Event]()
        # A home that fails is tried again soon.
        deadline = time.monotonic() + _POLL_SECONDS
        with suppress(queue.Empty):
            while True:
                record, event = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
                if record is None:
                    return records, waiting, True
                records.append(record)
                if event is not None:
                    waiting.append(event)
                    deadline = 0.0
                elif len(records) == 1:
                    deadline = min(deadline, time.monotonic() + _GATHER_SECONDS)
        return records, waiting, False


def _open(store: Store, run: OutsideRun, server: str, held: ExitStack) -> RecordedExperiment:
    """Begin a run in its experiment, which `store` may write until `held` is closed."""
    with _guard(store.home) if run.experiment else nullcontext():
        id = find_recorded(store, run.experiment) or _create(store, run, server)
        held.enter_context(store.lock(id))
    ids = read_identifiers(store.experiment_dir(id)) or Identifiers()
    wanted = "" if run.offline else server or None
    if ids.uid and ids.wanted != wanted:
        ids.wanted = wanted
        write_identifiers(store.experiment_dir(id), ids)
    experiment = RecordedExperiment(store, id, ids.uid)
    hparams = masked_hparams(run.hparams, run.config)
    experiment.begin(run.trial, hparams, os.uname().nodename)
    return experiment


def _create(store: Store, run: OutsideRun, server: str) -> int:
    config, shown = run.config, masked(run.config)
    wanted = "" if run.offline else server or None
    ids = Identifiers(run.experiment, uid=str(uuid.uuid4()), wanted=wanted)
    searcher = config.searcher

    def fill(id: int) -> None:
        store.code_dir(id).mkdir()
        (store.experiment_dir(id) / FILE).write_text(json.dumps(msgspec.to_builtins(ids)))

    return store.experiments.create(
        name=shown["name"] or "",
        config=json.dumps(shown, allow_nan=False),
        secrets=find_secrets(config),
        entrypoint=str(shown["entrypoint"]),
        metric=(searcher.metric or "") if searcher else "",
        smaller_is_better=searcher.smaller_is_better if searcher else True,
        description=shown["description"] or "",
        labels=shown["labels"],
        engine=OUTSIDE,
        fill=fill,
    ).id


def _keep_origin(directory: Path, run: OutsideRun) -> None:
    """Keep the script, and where it ran. What cannot be read is left out."""
    script = run.script
    with suppress(OSError):
        if script is not None and script.stat().st_size <= LARGEST_SCRIPT:
            (directory / "code" / script.name).write_bytes(script.read_bytes())
        place = script.absolute().parent if script is not None else Path.cwd()
        write_provenance(directory, gather(place, run.config))


@contextmanager
def _guard(home: Path) -> Iterator[None]:
    with (home / "experiments" / _GUARD).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _described(records: Sequence[ScriptRecord]) -> str:
    """Return in words what records hold: how many reports and checkpoints, and of which batches."""
    at = [each.batches for each in records if isinstance(each, ReportRecord)]
    saved = [each.uuid for each in records if isinstance(each, CheckpointRecord)]
    words = []
    if at:
        words.append(f"{len(at)} report{'s' * (len(at) > 1)} (batches {min(at)} to {max(at)})")
    if saved:
        words.append(f"checkpoint{'s' * (len(saved) > 1)} {', '.join(saved)}")
    return " and ".join(words) or "how it ended"

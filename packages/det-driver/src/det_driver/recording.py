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
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from det_core.checkpoint.manifest import Manifest
from det_core.config import find_secrets, masked, masked_hparams
from det_core.errors import StoreError, StoreUnwritable
from det_core.hooks.recording import OutsideRun, Recorded
from det_core.support.paths import read_regular
from det_core.support.threads import start_thread
from det_core.train.host import Outcome
from det_node.protocol import Checkpointed, Deleted, Finished, Progressed, Reported

from .provenance import gather
from .provenance import write as write_provenance
from .store import (
    DESCRIBE_COMMAND,
    NO_JOURNAL,
    OUTSIDE,
    ExperimentState,
    Run,
    Store,
    TrialRow,
    TrialState,
    boot_id,
    dump,
    is_trusted,
)

FILE = "outside.json"
"""The file in an experiment's directory with the identifiers that its scripts gave."""
_GUARD = ".outside.lock"
"""Whoever looks for an experiment by its identifier, and makes it, holds this lock."""
_POLL_SECONDS, _GATHER_SECONDS = 1.0, 0.2
_OPEN_SECONDS, _COMMIT_SECONDS, _CLOSE_SECONDS = 60.0, 40.0, 3.0
"""How long a script waits for its experiment, a commit, and at its end for a disk that fails."""
_ORIGIN_SECONDS = 1.0
"""How long a script waits at its end for Git, which may need long in a large repository."""
_MOST_KEPT = 100_000
"""The most records that wait in memory for a home that cannot be written."""
_LARGEST_SCRIPT = 1_000_000
_ENDS = {
    Outcome.COMPLETED: (TrialState.COMPLETED, ExperimentState.COMPLETED),
    Outcome.USER_STOPPED: (TrialState.COMPLETED, ExperimentState.COMPLETED),
    Outcome.INVALID_HP: (TrialState.INVALID_HP, ExperimentState.ERROR),
    # Ctrl-C.
    Outcome.PREEMPTED: (TrialState.CANCELED, ExperimentState.CANCELED),
}
"""The states of a trial and of its experiment by the outcome of a run. Others are errors."""


Record = Reported | Checkpointed | Deleted | Progressed | Finished


def record(run: OutsideRun) -> ScriptRecording | None:
    """Begin the record of a run. None, after a warning, where the home cannot be written."""
    recording = ScriptRecording(run)
    if recording.failure is not None:
        _warn(f"this run is not recorded: {recording.failure}; it goes on")
        return None
    _warn(f"this run is experiment {(id := recording.recorded.experiment_id)}: det show {id}")
    return recording


class ScriptRecording:
    """The record of one run: a queue, and the thread that writes what is in it.

    `failure` says why there is no record. A forked process has none.
    """

    def __init__(self, run: OutsideRun) -> None:
        self.recorded = Recorded()
        self.failure: str | None = None
        self._run, self._pid = run, os.getpid()
        self._inbox: queue.SimpleQueue[tuple[Record | None, threading.Event | None]] = (
            queue.SimpleQueue()
        )
        self._opened, self._ended = threading.Event(), threading.Event()
        self._finished = False
        self._kept: list[Record] = []
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
        self._put(Reported(group, batches, dict(metrics)))

    def checkpointed(self, manifest: Manifest, storage: str) -> None:
        self._put(Checkpointed(manifest, storage), waits=True)

    def deleted(self, uuid: str) -> None:
        if self.failure is not None or os.getpid() != self._pid:
            return
        with Store.reader(self._run.home) as store, store.models.deleting():
            # No model gets it before the record is written.
            store.models.check_free([uuid])
            self._put(Deleted(uuid), waits=True)

    def progress(self, fraction: float) -> None:
        self._put(Progressed(fraction))

    def finished(self, outcome: Outcome, message: str, traceback: str) -> None:
        if not self._finished:
            self._finished = True
            self._put(Finished(outcome, message, traceback), waits=True)

    def close(self) -> None:
        if os.getpid() == self._pid and not self._ended.is_set():
            self._inbox.put((None, None))
            self._ended.wait(_COMMIT_SECONDS)
        atexit.unregister(self.close)

    def _put(self, record: Record, *, waits: bool = False) -> None:
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
                experiment = RecordedExperiment(store, self._run, held)
                self.recorded = experiment.recorded
                self._opened.set()
                origin = start_thread(experiment.keep_origin, name="det-origin")
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

    def _fail(self, error: BaseException) -> None:
        if self._opened.is_set():
            _warn(
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
                if warned:
                    _warn(f"{self._run.home} can be written again, and nothing is lost")
                    warned = False
            except StoreUnwritable as error:
                if not warned:
                    warned = True
                    _warn(f"{error}; the script goes on, and det tries again to record it")
                self._lost += len(self._kept[_MOST_KEPT:])
                del self._kept[_MOST_KEPT:]
            except Exception:
                self._write_each(experiment)
            for event in waiting:
                event.set()
        if self._kept or self._lost:
            more = f", and {self._lost} later ones" if self._lost else ""
            _warn(
                f"not recorded of experiment {experiment.recorded.experiment_id}:"
                f" {_described(self._kept)}{more}"
            )

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
                _warn(f"{_described([each])} is not recorded: {error}")

    def _gather(self) -> tuple[list[Record], list[threading.Event], bool]:
        """Wait for records, and return all that come soon after the first."""
        records, waiting = list[Record](), list[threading.Event]()
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


class RecordedExperiment:
    """The experiment of a run, which the caller's store may write until `held` is closed."""

    def __init__(self, store: Store, run: OutsideRun, held: ExitStack) -> None:
        self._store, self._given = store, run
        with _guard(store.home) if run.experiment else nullcontext():
            self._id = _find(store, run.experiment) or self._create()
            held.enter_context(store.lock(self._id))
        self._run: Run | None = None
        with store.transaction():
            self._trial = self._begin_trial()
            self._begin()
        latest = self._trial.latest_checkpoint
        self.recorded = Recorded(
            experiment_id=self._id,
            trial_id=self._trial.id,
            run_number=self._trial.runs + 1,
            latest_checkpoint=latest,
            steps_completed=store.checkpoints.get(latest).batches if latest else 0,
        )

    def write(self, records: Sequence[Record]) -> None:
        """Write records in one transaction, and what other processes asked of the experiment."""
        before, store = self._run, self._store
        asks = bool(store.commands.names(self._id))
        if not records and not asks:
            return
        try:
            with store.transaction():
                for each in records:
                    self._apply(each)
                for command in store.commands.take(self._id) if asks else ():
                    if command.kind == DESCRIBE_COMMAND:
                        store.experiments.update(self._id, **command.args)
                store.experiments.update(
                    self._id, progress=store.trials.get(self._trial.id).progress
                )
        except BaseException:
            self._run = before
            raise

    def keep_origin(self) -> None:
        """Keep the script, and where it ran. What cannot be read is left out."""
        directory, script = self._store.experiment_dir(self._id), self._given.script
        with suppress(OSError):
            if script is not None and script.stat().st_size <= _LARGEST_SCRIPT:
                (directory / "code" / script.name).write_bytes(script.read_bytes())
            place = script.absolute().parent if script is not None else Path.cwd()
            write_provenance(directory, gather(place, self._given.config))

    def _create(self) -> int:
        config, shown = self._given.config, masked(self._given.config)
        ids: dict[str, Any] = {"experiment": self._given.experiment, "trials": {}}
        searcher = config.searcher

        def fill(id: int) -> None:
            self._store.code_dir(id).mkdir()
            (self._store.experiment_dir(id) / FILE).write_text(json.dumps(ids))

        return self._store.experiments.create(
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

    def _begin_trial(self) -> TrialRow:
        """Return the trial that the run continues, or a new one."""
        store, given = self._store, self._given
        file = store.experiment_dir(self._id) / FILE
        ids = json.loads(read_regular(file))
        trials = store.trials.list(self._id)
        wanted = ids["trials"].get(given.trial) if given.trial else None
        for each in trials:
            if each.request == wanted:
                store.trials.update(
                    each.id,
                    state=TrialState.RUNNING,
                    hparams=dump(masked_hparams(given.hparams, given.config) or each.hparams),
                    ended=None,
                    exit_reason=None,
                )
                return each
        request = max((each.request for each in trials), default=-1) + 1
        trial = store.trials.create(
            self._id, request, masked_hparams(given.hparams, given.config), 0
        )
        self._run = store.runs.begin(trial.id, first=True, host=os.uname().nodename)
        if given.trial:
            # A process that was killed here before may have named a trial that it did not make.
            made = {each.request for each in trials}
            ids["trials"] = {key: n for key, n in ids["trials"].items() if n in made}
            ids["trials"][given.trial] = request
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps(ids))
            fresh.replace(file)
        return trial

    def _begin(self) -> None:
        """Note that this process writes the experiment, and that killed ones of it do not."""
        store = self._store
        for each in store.runs.open(self._id):
            if each.trial_id != self._trial.id:
                store.runs.end(each.id, "lost")
                store.trials.update(
                    each.trial_id,
                    state=TrialState.ERROR,
                    ended=time.time(),
                    exit_reason="its process was killed",
                )
        store.experiments.update(
            self._id,
            state=ExperimentState.ACTIVE,
            started=store.experiments.get(self._id).started or time.time(),
            ended=None,
            reason=None,
            pid=os.getpid(),
            boot=boot_id(),
            journal=NO_JOURNAL,
            det=version("det-driver"),
        )

    def _running(self, position: int) -> Run:
        """Return the run. A trial that is continued begins it where its first report is.

        Only then it is known from where the script went on, be it a checkpoint or a file of its
        own. Later reports of earlier runs are archived, as the run reports them again.
        """
        if self._run is None:
            at = min(self._trial.batches, position)
            self._run = self._store.runs.begin(self._trial.id, at, host=os.uname().nodename)
        return self._run

    def _apply(self, record: Record) -> None:
        store, trial = self._store, self._trial.id
        match record:
            case Reported(group, batches, values):
                store.metrics.report(trial, self._running(batches).id, group, batches, values)
            case Checkpointed(manifest, storage):
                store.checkpoints.record(
                    manifest.uuid,
                    trial,
                    self._running(manifest.batches).id,
                    manifest.batches,
                    storage=storage,
                    size=sum(file.size for file in manifest.files.values()),
                    metadata=manifest.metadata,
                    framework=manifest.framework,
                )
            case Deleted(uuid):
                store.checkpoints.mark_deleted(uuid)
            case Progressed(fraction):
                store.trials.update(trial, progress=fraction)
            case Finished():
                self._end(record)

    def _end(self, record: Finished) -> None:
        store, now = self._store, time.time()
        run = self._running(self._trial.batches)
        ended, state = _ENDS.get(record.outcome, (TrialState.ERROR, ExperimentState.ERROR))
        reason = record.message or None
        if record.traceback:
            run.log_dir.mkdir(parents=True, exist_ok=True)
            (run.log_dir / "rank-0.log").write_text(record.traceback, encoding="utf-8")
        store.runs.end(run.id, record.outcome.value, reason)
        store.trials.update(self._trial.id, state=ended, ended=now, exit_reason=reason)
        if ended is TrialState.COMPLETED:
            store.trials.update(self._trial.id, progress=1.0)
        store.experiments.update(
            self._id, state=state, ended=now, reason=reason, pid=None, boot=None
        )


@contextmanager
def _guard(home: Path) -> Iterator[None]:
    with (home / "experiments" / _GUARD).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _find(store: Store, experiment: str | None) -> int | None:
    """Return the experiment of a home whose scripts gave this identifier."""
    if experiment is None:
        return None
    for file in (store.home / "experiments").glob(f"[0-9]*/{FILE}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            id = int(file.parent.name)
            if json.loads(read_regular(file))["experiment"] == experiment and is_trusted(store, id):
                return id
    return None


def _described(records: Sequence[Record]) -> str:
    """Return in words what records hold: how many reports and checkpoints, and of which batches."""
    at = [each.batches for each in records if isinstance(each, Reported)]
    saved = [each.manifest.uuid for each in records if isinstance(each, Checkpointed)]
    words = []
    if at:
        words.append(f"{len(at)} report{'s' * (len(at) > 1)} (batches {min(at)} to {max(at)})")
    if saved:
        words.append(f"checkpoint{'s' * (len(saved) > 1)} {', '.join(saved)}")
    return " and ".join(words) or "how it ended"


def _warn(text: str) -> None:
    # The stream may be closed or broken.
    with suppress(OSError, ValueError):
        sys.stderr.write(f"det: {text}\n")
        sys.stderr.flush()

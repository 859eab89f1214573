"""The experiment of a script that det did not start, as the records of its runs make it.

Its home keeps the records in the experiment's journal, in events of bounded size. Another home or a
server takes up the same events, each once, and so has the same experiment. An event names the
digest of the one before it, so that two copies of a recording that have both gone on are told
apart.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec

from det_core.errors import DetError, StorageError, StoreError
from det_core.storage import checked_uuid
from det_core.support.paths import read_regular
from det_core.train.host import Outcome

from ..store import (
    DESCRIBE_COMMAND,
    NO_JOURNAL,
    ExperimentState,
    ScriptSource,
    SourceState,
    Store,
    TrialRow,
    TrialState,
    boot_id,
    dump,
    is_trusted,
    load,
)

FILE = "outside.json"
"""The file in an experiment's directory with the identifiers that its scripts gave."""
LONGEST_EVENT = 256 << 10
"""The records of a longer event are divided, unless it is one."""
_LATEST = 1e11
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_ENDS = {
    Outcome.COMPLETED: (TrialState.COMPLETED, ExperimentState.COMPLETED),
    Outcome.USER_STOPPED: (TrialState.COMPLETED, ExperimentState.COMPLETED),
    Outcome.INVALID_HP: (TrialState.INVALID_HP, ExperimentState.ERROR),
    # Ctrl-C.
    Outcome.PREEMPTED: (TrialState.CANCELED, ExperimentState.CANCELED),
}
"""The states of a trial and of its experiment by the outcome of a run. Others are errors."""


class BeginRecord(msgspec.Struct, frozen=True, tag="began", array_like=True):
    """A script begins. `trial` is the number of its trial in its home, and `key` its identifier."""

    trial: _Count
    key: str | None
    hparams: dict[str, Any]
    host: str


class ReportRecord(msgspec.Struct, frozen=True, tag="report", array_like=True):
    """Metrics of a group at a position."""

    group: str
    batches: _Count
    metrics: dict[str, Any]


class CheckpointRecord(msgspec.Struct, frozen=True, tag="checkpoint", array_like=True):
    """A checkpoint is published."""

    uuid: str
    batches: _Count
    storage: str
    size: _Count
    metadata: dict[str, Any]
    framework: str


class DeletionRecord(msgspec.Struct, frozen=True, tag="deleted", array_like=True):
    """A checkpoint is deleted."""

    uuid: str


class ProgressRecord(msgspec.Struct, frozen=True, tag="progress", array_like=True):
    """The fraction of the training that is done."""

    fraction: float


class EndRecord(msgspec.Struct, frozen=True, tag="finished", array_like=True):
    """The script has ended."""

    outcome: Outcome
    message: str
    traceback: str


ScriptRecord = (
    BeginRecord | ReportRecord | CheckpointRecord | DeletionRecord | ProgressRecord | EndRecord
)


class RecordEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records that were written together. `before` is the digest of the event before this one."""

    time: float
    before: str
    records: list[ScriptRecord]


_event = msgspec.json.Decoder(RecordEvent)


def read_event(text: str | bytes) -> RecordEvent:
    """Return an event from its text. Raises StoreError for what is none."""
    try:
        event: RecordEvent = msgspec.convert(load(text), _event.type)
        for each in event.records:
            if isinstance(each, CheckpointRecord | DeletionRecord):
                checked_uuid(each.uuid)
    except (ValueError, RecursionError, msgspec.ValidationError, StorageError) as error:
        raise StoreError(f"a record of a script is damaged: {' '.join(str(error).split())}") from (
            error
        )
    if not 0 <= event.time < _LATEST:
        raise StoreError(f"a record of a script is damaged: it is of the time {event.time}")
    return event


def digest_of(text: str | bytes) -> str:
    """Return the digest by which the next event names this one."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:32]


class Identifiers(msgspec.Struct):
    """What identifies the recordings of an experiment.

    - `experiment`: the text that its scripts gave, and `trials` those of its trials, with their
      numbers.
    - `uid`: the recording that this home keeps, and `sources` those that it has taken up.
    - `wanted`: the server that `uid` is to be sent to. Empty where none was chosen, and None where
      it is not to be sent.
    - `user`: the user of the server that has taken it up.
    """

    experiment: str | None = None
    trials: dict[str, int] = {}
    uid: str | None = None
    sources: list[str] = []
    wanted: str | None = None
    user: str | None = None


_identifiers = msgspec.json.Decoder(Identifiers)


def read_identifiers(directory: Path) -> Identifiers | None:
    """Return the identifiers of an experiment. None for one that no script has recorded."""
    with suppress(OSError, ValueError, RecursionError, msgspec.ValidationError):
        return msgspec.convert(json.loads(read_regular(directory / FILE)), _identifiers.type)
    return None


def write_identifiers(directory: Path, ids: Identifiers) -> None:
    """Replace the identifiers of an experiment."""
    fresh = directory / f".{FILE}.new"
    fresh.write_text(json.dumps(msgspec.to_builtins(ids)))
    fresh.replace(directory / FILE)


def every_recorded(home: Path) -> Iterator[tuple[int, Identifiers]]:
    """Yield the experiments of a home that scripts have recorded, with their identifiers."""
    for file in sorted((home / "experiments").glob(f"[0-9]*/{FILE}")):
        ids = read_identifiers(file.parent)
        if ids is not None and file.parent.name.isdecimal():
            yield int(file.parent.name), ids


def find_recorded(
    store: Store, experiment: str | None, suits: Callable[[int], bool] = lambda id: True
) -> int | None:
    """Return the experiment of a home whose scripts gave this identifier."""
    if experiment is None:
        return None
    for id, ids in every_recorded(store.home):
        if ids.experiment == experiment and is_trusted(store, id) and suits(id):
            return id
    return None


class RecordedExperiment:
    """An experiment that one recording writes, under the lock that the caller's store holds.

    - `uid`: the recording. None for one of an earlier det, which keeps no journal.
    - `is_own`: whether this home keeps the recording. Otherwise it takes it up.
    - `find_alive`: returns the runs of other recordings whose scripts are alive.
    """

    def __init__(
        self,
        store: Store,
        id: int,
        uid: str | None,
        *,
        is_own: bool = True,
        find_alive: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self.id = id
        self.store = self._store = store
        self.uid = self._uid = uid
        self._is_own = is_own
        self._find_alive = find_alive
        self.source = store.sources.get(uid) if uid else ScriptSource()
        trials = {each.request: each for each in store.trials.list(id)}
        number = self.source.state.trial
        self._trial_id = trials[number].id if number in trials else 0

    @property
    def trial(self) -> TrialRow:
        """The trial of the script."""
        return self._store.trials.get(self._trial_id)

    @property
    def has_ended(self) -> bool:
        """Whether no script writes this recording, as far as the records tell."""
        return self.source.state.ended or self.source.state.trial is None

    def begin(self, key: str | None, hparams: Mapping[str, Any], host: str) -> None:
        """Record that a script begins, with the trial that its identifier names, or a new one."""
        made = {each.request for each in self._store.trials.list(self.id)}
        ids = self._identifiers()
        number = ids.trials.get(key) if key is not None else None
        if number not in made:
            number = max(made, default=-1) + 1
        self.write([BeginRecord(number or 0, key, dict(hparams), host)])

    def write(self, records: Sequence[ScriptRecord]) -> None:
        """Write records in one transaction, and what other processes asked of the experiment."""
        store = self._store
        asks = bool(store.commands.names(self.id))
        if not records and not asks:
            return
        before = self.source, self._trial_id
        try:
            with store.transaction():
                now = time.time()
                for part, text in self._divide(records, now):
                    if self._uid:
                        store.journal.append(self.id, text)
                    self._take(part, text, now)
                self._settle(replies=asks)
        except BaseException:
            self.source, self._trial_id = before
            raise

    def take(self, events: Sequence[str]) -> None:
        """Take up the next events of the recording in one transaction.

        Raises DetError, and changes nothing, for events that do not follow the last one.
        """
        before = self.source, self._trial_id
        try:
            with self._store.transaction():
                if events:
                    self._regain()
                for text in events:
                    event = read_event(text)
                    if event.before != self.source.digest:
                        raise DetError(
                            "this recording has other earlier records than those that were taken"
                            " up: two copies of its directory have both gone on; record each in a"
                            " directory of its own"
                        )
                    self._take(event.records, text, event.time)
                self._settle(replies=bool(self._store.commands.names(self.id)))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            self.source, self._trial_id = before
            raise StoreError(f"a record of a script cannot be taken up: {error}") from error
        except BaseException:
            self.source, self._trial_id = before
            raise

    def hold(self) -> None:
        """Note that this process writes the experiment for a script that is alive."""
        experiment = self._store.experiments.get(self.id)
        if experiment.state is not ExperimentState.ACTIVE or experiment.pid != os.getpid():
            self._store.experiments.update(
                self.id,
                state=ExperimentState.ACTIVE,
                ended=None,
                reason=None,
                pid=os.getpid(),
                boot=boot_id(),
            )

    def _take(self, records: Sequence[ScriptRecord], text: str, at: float) -> None:
        for each in records:
            self._apply(each, at)
        if self._uid:
            self.source = ScriptSource(self.source.seq + 1, digest_of(text), self.source.state)

    def _settle(self, *, replies: bool) -> None:
        """Write what follows from the records, and answer the commands of other processes."""
        store = self._store
        for command in store.commands.take(self.id) if replies else ():
            if command.kind == DESCRIBE_COMMAND:
                store.experiments.update(self.id, **command.args)
        if self._trial_id:
            store.experiments.update(self.id, progress=self.trial.progress)
        if self._uid:
            store.sources.put(self._uid, self.source)

    def _divide(
        self, records: Sequence[ScriptRecord], now: float
    ) -> Iterator[tuple[list[ScriptRecord], str]]:
        """Yield the records in parts, each with the text of its event."""
        part, texts, size = list[ScriptRecord](), list[str](), 0
        for number, each in enumerate(records, 1):
            texts.append(dump(msgspec.to_builtins(each)) if self._uid else "")
            part.append(each)
            size += len(texts[-1])
            if size >= LONGEST_EVENT or number == len(records):
                before = self.source.digest
                text = f'{{"time":{now!r},"before":"{before}","records":[{",".join(texts)}]}}'
                yield part, text
                part, texts, size = [], [], 0

    def _regain(self) -> None:
        """Go on after the run was given up here, as nothing was heard of its script.

        Raises DetError if another script has begun a run of the trial meanwhile.
        """
        state = self.source.state
        if state.run is None or state.ended:
            return
        *_, last = self._store.runs.list(self._trial_id)
        if last.id != state.run:
            raise DetError(
                f"another process records trial {self._trial_id} of experiment {self.id} now; its"
                " records replace these"
            )
        if last.ended is not None:
            self._store.trials.update(
                self._trial_id, state=TrialState.RUNNING, ended=None, exit_reason=None
            )
            self._store.experiments.update(
                self.id, state=ExperimentState.ACTIVE, ended=None, reason=None
            )
            self._change(run=None)

    def _identifiers(self) -> Identifiers:
        return read_identifiers(self._store.experiment_dir(self.id)) or Identifiers()

    def _change(self, **changes: Any) -> None:
        state = msgspec.structs.replace(self.source.state, **changes)
        self.source = ScriptSource(self.source.seq, self.source.digest, state)

    def _begin(self, record: BeginRecord, at: float) -> None:
        """Begin the run of a script. Those of scripts that were killed have ended."""
        store = self._store
        row, is_new = self._find_trial(record)
        self._trial_id, alive = row.id, {*self._find_alive()}
        for each in store.runs.open(self.id):
            if each.trial_id != row.id and each.id not in alive:
                store.runs.end(each.id, "lost", ended=store.runs.last_seen(each.id))
                store.trials.update(
                    each.trial_id,
                    state=TrialState.ERROR,
                    ended=at,
                    exit_reason="its process was killed",
                )
        run = None
        if is_new:
            run = store.runs.begin(row.id, first=True, host=record.host, at=at).id
        else:
            store.trials.update(
                row.id,
                state=TrialState.RUNNING,
                hparams=dump(record.hparams or row.hparams),
                ended=None,
                exit_reason=None,
            )
        numbers = {**self.source.state.trials, record.trial: row.request}
        runs = (
            self.source.state.runs if run is None else {**self.source.state.runs, row.request: run}
        )
        state = SourceState(numbers, row.request, run, runs, ended=False, host=record.host)
        self.source = ScriptSource(self.source.seq, self.source.digest, state)
        store.experiments.update(
            self.id,
            state=ExperimentState.ACTIVE,
            started=store.experiments.get(self.id).started or at,
            ended=None,
            reason=None,
            pid=os.getpid(),
            boot=boot_id(),
            journal=NO_JOURNAL,
            det=version("det-driver"),
        )

    def _find_trial(self, record: BeginRecord) -> tuple[TrialRow, bool]:
        """Return the trial that a script continues, or a new one, and whether it is new."""
        store, ids = self._store, self._identifiers()
        trials = {each.request: each for each in store.trials.list(self.id)}
        # A process that was killed here before may have named a trial that it did not make.
        known = {key: number for key, number in ids.trials.items() if number in trials}
        number = known.get(record.key) if record.key is not None else None
        if number is None:
            number = self.source.state.trials.get(record.trial)
        is_new = number not in trials
        if number is None or is_new:
            number = max(trials, default=-1) + 1
            trials[number] = store.trials.create(self.id, number, record.hparams, 0)
        if record.key is not None:
            known[record.key] = number
        if known != ids.trials:
            ids.trials = known
            write_identifiers(store.experiment_dir(self.id), ids)
        return trials[number], is_new

    def _running(self, position: int, at: float) -> int:
        """Return the run. A trial that is continued begins it where its first report is.

        Only then it is known from where the script went on, be it a checkpoint or a file of its
        own. Later reports of earlier runs are archived, as the run reports them again.
        """
        if not self._trial_id:
            raise StoreError("a record of a script comes before its beginning")
        state = self.source.state
        if state.run is None:
            first = min(self.trial.batches, position)
            run = self._store.runs.begin(self._trial_id, first, host=state.host, at=at)
            assert state.trial is not None
            self._change(run=run.id, runs={**state.runs, state.trial: run.id})
            return run.id
        return state.run

    def _apply(self, record: ScriptRecord, at: float) -> None:
        store, trial = self._store, self._trial_id
        match record:
            case BeginRecord():
                self._begin(record, at)
            case ReportRecord(group, batches, values):
                run = self._running(batches, at)
                store.metrics.report(trial, run, group, batches, values, at=at)
            case CheckpointRecord(uuid, batches, storage, size, metadata, framework):
                store.checkpoints.record(
                    uuid,
                    trial,
                    self._running(batches, at),
                    batches,
                    storage=storage,
                    size=size,
                    metadata=metadata,
                    framework=framework,
                    at=at,
                    imported=not self._is_own,
                )
            case DeletionRecord(uuid):
                # One of an earlier recording may be another experiment's.
                if self._is_own or any(
                    each.uuid == uuid for each in store.checkpoints.list(experiment_id=self.id)
                ):
                    store.checkpoints.mark_deleted(uuid)
            case ProgressRecord(fraction):
                if not math.isfinite(fraction) or not self._trial_id:
                    raise StoreError(f"a record of a script is damaged: progress {fraction}")
                store.trials.update(trial, progress=fraction)
            case EndRecord():
                self._end(record, at)

    def _end(self, record: EndRecord, at: float) -> None:
        store = self._store
        run = self._running(self.trial.batches, at)
        ended, state = _ENDS.get(record.outcome, (TrialState.ERROR, ExperimentState.ERROR))
        reason = record.message or None
        if record.traceback:
            place = store.runs.get(run).log_dir
            place.mkdir(parents=True, exist_ok=True)
            (place / "rank-0.log").write_text(record.traceback, encoding="utf-8")
        store.runs.end(run, record.outcome.value, reason, ended=at)
        store.trials.update(self._trial_id, state=ended, ended=at, exit_reason=reason)
        if ended is TrialState.COMPLETED:
            store.trials.update(self._trial_id, progress=1.0)
        self._change(ended=True)
        alive = {*self._find_alive()}
        if not any(each.id in alive for each in store.runs.open(self.id)):
            store.experiments.update(
                self.id, state=state, ended=at, reason=reason, pid=None, boot=None
            )


def name_recording(home: Path, id: int) -> str:
    """Return how det sync is told of an experiment."""
    default = Path(os.environ.get("DET_HOME") or Path.home() / ".det").absolute()
    return str(id) if home.absolute() == default else str(home)


def warn(text: str) -> None:
    """Print a line of det to stderr."""
    # The stream may be closed or broken.
    with suppress(OSError, ValueError):
        sys.stderr.write(f"det: {text}\n")
        sys.stderr.flush()

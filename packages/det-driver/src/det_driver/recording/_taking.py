"""Takes up recordings of other homes: as a home does for det sync, and a server for its users."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from det_core.config import from_json, masked
from det_core.errors import DetError
from det_core.support.paths import read_regular

from ..provenance import FILE as ORIGIN
from ..provenance import adopt as adopt_origin
from ..store import OUTSIDE, ExperimentRow, Store
from ._experiment import (
    FILE,
    Identifiers,
    RecordedExperiment,
    every_recorded,
    find_recorded,
    read_identifiers,
    write_identifiers,
)

FORMAT = 1
"""The version of the events and of these messages."""
ALIVE_SECONDS = 60.0
"""A script is taken for killed when nothing was heard of it for so long."""
_LONGEST_UID = 100


class ScriptFile(msgspec.Struct, frozen=True):
    """The file of a script."""

    name: str
    text: str


class Taking(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to take up the events of a recording after number `after`.

    - `id` identifies the recording.
    - `config`: the configuration of its experiment as JSON, without secrets.
    - `experiment`: the identifier that its scripts gave, and `trial` that of the trial about which
      the answer is.
    - `is_alive`: whether its script runs.
    - `script`, `origin`: what ran, and where. They may come with any request.
    """

    id: str
    config: str
    format: int = FORMAT
    experiment: str | None = None
    trial: str | None = None
    after: int = 0
    events: list[str] = []
    is_alive: bool = False
    script: ScriptFile | None = None
    origin: dict[str, Any] | None = None


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What a home or a server has of a recording now.

    - `experiment`: the experiment's number.
    - `seq`: the last event, and `digest` its digest.
    - `is_here`: whether this home itself keeps the recording, so that nothing is to be sent.
    - `has_origin`: whether it has the script and where it ran.
    - `checkpoint`, `batches`: the latest checkpoint of the trial that was asked about, if another
      recording has continued it, with its position.
    """

    experiment: int
    seq: int = 0
    digest: str = ""
    is_here: bool = False
    has_origin: bool = False
    is_continued: bool = False
    checkpoint: str | None = None
    batches: int = 0


class Owner:
    """Whose recordings are taken up. This one is for a home, where everything is of its user."""

    name: str | None = None

    def whose(self, found: ExperimentRow) -> str | None:
        """Return whose an experiment is. None where that is not known."""
        return None

    def check_quota(self) -> None:
        """Raise DetError if they may not make another experiment now."""

    def made(self, id: int) -> None:
        """Note that an experiment is theirs."""


class _Held:
    """An experiment whose lock is held, with the recordings that write it."""

    def __init__(self, home: Path, id: int) -> None:
        with ExitStack() as undo:
            self.store = undo.enter_context(Store(home))
            undo.enter_context(self.store.lock(id))
            self._leave = undo.pop_all()
        self.id = id
        self.recordings: dict[str, RecordedExperiment] = {}
        self.until: dict[str, float] = {}

    def recording(self, uid: str) -> RecordedExperiment:
        if uid not in self.recordings:

            def find_alive() -> list[int]:
                others = (each for name, each in self.recordings.items() if name != uid)
                runs = (
                    each.source.state.run
                    for each in others
                    if each.uid in self.until and not each.source.state.ended
                )
                return [run for run in runs if run is not None]

            self.recordings[uid] = RecordedExperiment(
                self.store, self.id, uid, is_own=False, find_alive=find_alive
            )
        return self.recordings[uid]

    def forget(self, uid: str) -> None:
        """Read a recording again with its next request."""
        self.recordings.pop(uid, None)
        self.until.pop(uid, None)

    def close(self) -> None:
        self._leave.close()


class Receiver:
    """Takes up recordings into a home. It is for one thread.

    The lock of an experiment is held while one of its scripts is alive, as a driver would. So the
    experiment is shown as killed once nothing was heard of it for `ALIVE_SECONDS`.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._known: dict[str, int] = {}
        self._held: dict[int, _Held] = {}

    def take(self, given: Taking, owner: Owner) -> Accepted:
        """Take up the events that are not here yet, and return what is here then.

        Raises DetError where the recording cannot be taken up. Nothing of its events is then.
        """
        if given.format != FORMAT:
            raise DetError(
                f"this recording has format {given.format}, and {FORMAT} is known here; upgrade det"
            )
        if not 0 < len(given.id) <= _LONGEST_UID or not given.id.isprintable():
            raise DetError("this recording has no identifier")
        with Store(self._home) as store:
            id = self._find(store, given, owner)
            ids = read_identifiers(store.experiment_dir(id)) or Identifiers()
            if ids.uid == given.id:
                return Accepted(experiment=id, is_here=True)
            has_origin = _keep_origin(store.experiment_dir(id), given)
        held = self._held.get(id)
        if held is None:
            held = self._held[id] = _Held(self._home, id)
        try:
            return self._take_up(held, given, has_origin)
        except BaseException:
            held.forget(given.id)
            raise
        finally:
            if not held.until:
                self._release(id)

    def _take_up(self, held: _Held, given: Taking, has_origin: bool) -> Accepted:
        recording = held.recording(given.id)
        before = recording.source.seq
        if given.after <= before:
            recording.take(given.events[before - given.after :])
        if given.is_alive:
            held.until[given.id] = time.monotonic() + ALIVE_SECONDS
            if not recording.has_ended:
                recording.hold()
        else:
            held.until.pop(given.id, None)
        return Accepted(
            experiment=held.id,
            seq=recording.source.seq,
            digest=recording.source.digest,
            has_origin=has_origin,
            **_continued(held.store, recording, given.trial),
        )

    def release(self, *, all: bool = False) -> None:
        """Release the experiments whose scripts have not been heard of for long, or all."""
        now = time.monotonic()
        for id, held in [*self._held.items()]:
            held.until = {uid: at for uid, at in held.until.items() if at > now and not all}
            if not held.until:
                self._release(id)

    def _release(self, id: int) -> None:
        if (held := self._held.pop(id, None)) is not None:
            held.close()

    def _find(self, store: Store, given: Taking, owner: Owner) -> int:
        """Return the experiment of a recording, which is made if there is none."""
        id = self._known.get(given.id)
        if id is None or not _has(read_identifiers(store.experiment_dir(id)), given.id):
            found = (each for each, ids in every_recorded(store.home) if _has(ids, given.id))
            id = next(found, None)
        if id is not None:
            ids = read_identifiers(store.experiment_dir(id)) or Identifiers()
            whose = owner.whose(store.experiments.get(id))
            if whose != owner.name:
                # A server may have been killed before it noted whose the experiment is.
                if whose is not None or (ids.uid != given.id and ids.user != owner.name):
                    raise DetError(
                        f"this recording is experiment {id} already, which is not yours; only its"
                        " owner may send more of it"
                    )
                owner.made(id)
        else:

            def is_theirs(id: int) -> bool:
                return owner.whose(store.experiments.get(id)) == owner.name

            id = find_recorded(store, given.experiment, is_theirs)
            if id is None:
                owner.check_quota()
                id = _create(store, given, owner)
                owner.made(id)
            else:
                ids = read_identifiers(store.experiment_dir(id)) or Identifiers()
                ids.sources.append(given.id)
                write_identifiers(store.experiment_dir(id), ids)
        self._known[given.id] = id
        return id


def _has(ids: Identifiers | None, uid: str) -> bool:
    return ids is not None and (ids.uid == uid or uid in ids.sources)


def _create(store: Store, given: Taking, owner: Owner) -> int:
    config = from_json(given.config)
    if config.checkpoint_storage is not None:
        raise DetError("the configuration of this recording names a checkpoint storage")
    shown = masked(config)
    searcher = config.searcher
    ids = Identifiers(given.experiment, sources=[given.id], user=owner.name)

    def fill(id: int) -> None:
        store.code_dir(id).mkdir()
        (store.experiment_dir(id) / FILE).write_text(json.dumps(msgspec.to_builtins(ids)))

    return store.experiments.create(
        name=shown["name"] or "",
        config=json.dumps(shown, allow_nan=False),
        entrypoint=str(shown["entrypoint"]),
        metric=(searcher.metric or "") if searcher else "",
        smaller_is_better=searcher.smaller_is_better if searcher else True,
        description=shown["description"] or "",
        labels=shown["labels"],
        engine=OUTSIDE,
        fill=fill,
    ).id


def _keep_origin(directory: Path, given: Taking) -> bool:
    """Keep the script, and where it ran. Return whether they are here."""
    script = given.script
    if script is not None and _is_name(script.name):
        (directory / "code").mkdir(exist_ok=True)
        (directory / "code" / script.name).write_text(script.text, encoding="utf-8")
    if given.origin is not None:
        adopt_origin(directory, given.origin)
    with suppress(OSError, ValueError):
        return "python" in json.loads(read_regular(directory / ORIGIN))
    return False


def _is_name(name: str) -> bool:
    return name.isprintable() and name not in ("", ".", "..") and os.path.basename(name) == name


def _continued(store: Store, recording: RecordedExperiment, key: str | None) -> Mapping[str, Any]:
    """Return the checkpoint from which a trial continues that another recording has written."""
    ids = read_identifiers(store.experiment_dir(recording.id)) or Identifiers()
    number = ids.trials.get(key) if key is not None else None
    for trial in store.trials.list(recording.id):
        if trial.request == number:
            runs, own = store.runs.list(trial.id), recording.source.state.runs
            is_own = not runs or runs[-1].id == own.get(trial.request)
            latest = None if is_own else trial.latest_checkpoint
            batches = store.checkpoints.get(latest).batches if latest else 0
            return {"is_continued": not is_own, "checkpoint": latest, "batches": batches}
    return {}


Take = Callable[[Taking], Accepted]
"""Sends a request to a home or a server. Raises DetError where it refuses."""


def receive_into_home(home: Path) -> tuple[Take, Receiver]:
    """Return what takes up recordings into a home."""
    receiver = Receiver(home)
    owner = Owner()

    def take(given: Taking) -> Accepted:
        return receiver.take(given, owner)

    return take, receiver

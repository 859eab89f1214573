"""What a driver takes over from one that was killed, and what it leaves: runs, checkpoints, the experiment's state."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec

from det_core.errors import StoreError
from det_core.launch import say
from det_core.process import end_leftover, is_running, noted_processes
from det_core.protocol import Checkpointed, Spooled, decode_note

from ..store import CheckpointRow, ExperimentState, Run, Store, TrialState
from ._starting import clear_scratch

_NOTICE_SECONDS = 2.0
_WAITS_SECONDS = 2.0


def end_leftovers(
    store: Store, experiment_id: int, patience: float, hurry: Callable[[], bool], executing: Collection[int] = ()
) -> None:
    """Wait until the processes of runs that never ended, and that no agent has, are gone: they save when they lose it.

    They have `patience` seconds together, or until `hurry` says so; then they are killed.
    """
    began = time.monotonic()
    for run in store.runs.open(experiment_id):
        if run.id not in executing:
            _wait(run, began, patience, hurry)
            end_leftover(run.log_dir, 0)
            clear_scratch(run)
            store.runs.end(run.id, "lost")


def _wait(run: Run, began: float, patience: float, hurry: Callable[[], bool]) -> None:
    said = False
    while (pids := _left(run)) and time.monotonic() < began + patience and not hurry():
        if not said and time.monotonic() > began + _NOTICE_SECONDS:
            said = True
            left = began + patience - time.monotonic()
            say(
                f"process {pids[0]} of trial {run.trial_id} saves, as its driver was lost; waiting for it, {left:.0f} s at most"
            )
        time.sleep(0.02)


def _left(run: Run) -> list[int]:
    return [pid for pid, birth in noted_processes(run.log_dir) if is_running(pid, birth)]


def adopt_spooled(store: Store, experiment_id: int) -> None:
    """Record the checkpoints that workers published after their driver was gone.

    Only those of a trial's last run, and only forwards: a process that outlived its run has nothing more to say.
    """
    for path in sorted((store.experiment_dir(experiment_id) / "spool").glob("*.json")):
        try:
            note = decode_note(path.read_bytes())
        except msgspec.DecodeError:  # of a machine that went down while it was written
            say(f"{path} is no note of a checkpoint and is left out; det checkpoint list shows those that are recorded")
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
            continue
        with store.transaction():
            _adopt(store, note)
        with suppress(OSError):  # what is recorded is passed over by the next driver
            path.unlink()


def _adopt(store: Store, note: Spooled) -> None:
    manifest = note.manifest
    trial = store.trials.get(manifest.trial_id or 0)
    latest = trial.latest_checkpoint
    at = store.checkpoints.get(latest).batches if latest else -1
    recorded = {row.uuid for row in store.checkpoints.list(trial_id=trial.id)}  # by a driver, whose answer was lost
    if store.runs.list(trial.id)[-1].id == note.run_id and manifest.batches >= at and manifest.uuid not in recorded:
        record_checkpoint(store, trial.id, note.run_id, note)


def record_checkpoint(store: Store, trial_id: int, run_id: int, word: Checkpointed | Spooled) -> CheckpointRow:
    """Record what a run has published."""
    manifest = word.manifest
    return store.checkpoints.record(
        manifest.uuid,
        trial_id,
        run_id,
        manifest.batches,
        storage=word.storage,
        size=sum(file.size for file in manifest.files.values()),
        metadata=manifest.metadata,
        framework=manifest.framework,
    )


def abandon(store: Store, experiment_id: int, reason: str) -> None:
    """Record that nobody drives the experiment, and that its processes are gone; it may be resumed when it is mended."""
    with store.transaction():
        row = store.experiments.get(experiment_id)
        if row.state.ended and row.pid is None:
            return  # it had ended before this
        store.experiments.update(
            experiment_id, state=ExperimentState.ERROR, ended=time.time(), reason=reason, pid=None, boot=None
        )
        store.slots.stop_waiting(experiment_id)
        for trial in store.trials.list(experiment_id):
            if not trial.state.ended:
                store.trials.update(trial.id, state=TrialState.PAUSED)
        for run in store.runs.open(experiment_id):
            store.runs.end(run.id, "abandoned")


def note_pause(store: Store, experiment_id: int, reason: str) -> None:
    """Record that an experiment is paused once its store can be written; else the next driver finds it as it was."""
    deadline = time.monotonic() + _WAITS_SECONDS
    while True:
        try:
            store.experiments.update(
                experiment_id, state=ExperimentState.PAUSED, ended=time.time(), reason=reason, pid=None, boot=None
            )
            return
        except StoreError:
            if time.monotonic() > deadline:
                return
            with suppress(StoreError):
                store.make_room()
            time.sleep(0.1)

"""What a driver takes over from one that was killed, and what a failed driver leaves.

This concerns runs, checkpoints and the experiment's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec

from det_core.errors import StoreError
from det_core.support.paths import NotRegularFile, read_regular
from det_core.train.run_setup import Spooled, decode_note
from det_node.launch import say
from det_node.process import end_leftover, is_running, noted_processes
from det_node.protocol import Checkpointed

from ..store import CheckpointRow, ExperimentState, Run, Store, TrialState
from ._starting import clear_scratch

_NOTICE_SECONDS = 2.0
_WAITS_SECONDS = 2.0


def end_leftovers(
    store: Store,
    experiment_id: int,
    patience: float,
    hurry: Callable[[], bool],
    executing: Collection[int] = (),
) -> None:
    """Wait for processes of runs that have no recorded end and no agent, then kill them.

    They save because they have lost their driver. They have `patience` seconds together, or until
    `hurry` returns true.
    """
    began = time.monotonic()
    for run in store.runs.open(experiment_id):
        if run.id not in executing:
            _wait(run, began, patience, hurry)
            end_leftover(run.log_dir, 0)
            clear_scratch(run)
            # It had no slots since its driver died, which may be days ago.
            store.runs.end(run.id, "lost", ended=store.runs.last_seen(run.id))


def _wait(run: Run, began: float, patience: float, hurry: Callable[[], bool]) -> None:
    noticed = False
    while (pids := _left(run)) and time.monotonic() < began + patience and not hurry():
        if not noticed and time.monotonic() > began + _NOTICE_SECONDS:
            noticed = True
            left = began + patience - time.monotonic()
            say(
                f"process {pids[0]} of trial {run.trial_id} saves, as its driver was lost; waiting"
                f" for it, {left:.0f} s at most"
            )
        time.sleep(0.02)


def _left(run: Run) -> list[int]:
    return [pid for pid, birth in noted_processes(run.log_dir) if is_running(pid, birth)]


def record_spooled(store: Store, experiment_id: int) -> None:
    """Record the checkpoints that workers published after their driver was gone.

    Only checkpoints of a trial's last run count, and only those beyond the latest one. Notes of a
    process that outlived its run are ignored.
    """
    for path in sorted((store.experiment_dir(experiment_id) / "spool").glob("*.json")):
        try:
            note = decode_note(read_regular(path))
        except (msgspec.DecodeError, UnicodeDecodeError, NotRegularFile):
            # The host went down while the note was written.
            say(
                f"{path} is no note of a checkpoint and is left out; det checkpoint list shows"
                " those that are recorded"
            )
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
            continue
        with store.transaction():
            _record_spooled(store, note)
        # If it stays, the next driver skips it, because it is recorded.
        with suppress(OSError):
            path.unlink()


def _record_spooled(store: Store, note: Spooled) -> None:
    manifest = note.manifest
    trial = store.trials.get(manifest.trial_id or 0)
    latest = trial.latest_checkpoint
    at = store.checkpoints.get(latest).batches if latest else -1
    # A driver may have recorded it while its reply was lost.
    recorded = {row.uuid for row in store.checkpoints.list(trial_id=trial.id)}
    if (
        store.runs.list(trial.id)[-1].id == note.run_id
        and manifest.batches >= at
        and manifest.uuid not in recorded
    ):
        record_checkpoint(store, trial.id, note.run_id, note)


def record_checkpoint(
    store: Store, trial_id: int, run_id: int, word: Checkpointed | Spooled
) -> CheckpointRow:
    """Record a checkpoint that a run has published."""
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


def detach(store: Store, experiment_id: int, reason: str) -> bool:
    """Record that an experiment has no driver and no processes. It may be resumed.

    Returns False where it had ended before.
    """
    with store.transaction():
        row = store.experiments.get(experiment_id)
        if row.state.ended and row.pid is None:
            # It had ended before the error.
            return False
        store.experiments.update(
            experiment_id,
            state=ExperimentState.ERROR,
            ended=time.time(),
            reason=reason,
            pid=None,
            boot=None,
        )
        store.slots.stop_waiting(experiment_id)
        for trial in store.trials.list(experiment_id):
            if not trial.state.ended:
                store.trials.update(trial.id, state=TrialState.PAUSED)
        for run in store.runs.open(experiment_id):
            store.runs.end(run.id, "abandoned")
    return True


def note_pause(store: Store, experiment_id: int, reason: str) -> None:
    """Record that an experiment is paused, once its store can be written.

    If it cannot be written within some seconds, the next driver finds the experiment unchanged.
    """
    deadline = time.monotonic() + _WAITS_SECONDS
    while True:
        try:
            store.experiments.update(
                experiment_id,
                state=ExperimentState.PAUSED,
                ended=time.time(),
                reason=reason,
                pid=None,
                boot=None,
            )
            return
        except StoreError:
            if time.monotonic() > deadline:
                return
            with suppress(StoreError):
                store.make_room()
            time.sleep(0.1)

"""What a driver takes over from one that was killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from det_core.checkpoint import Manifest
from det_core.errors import StoreError
from det_core.process import end_leftover

from ..store import Run, Store

_PATIENCE_SECONDS = 15.0


def end_leftovers(store: Store, experiment_id: int) -> None:
    """Wait until the processes of runs that never ended are gone: they save when they lose their driver."""
    for trial in store.trials.list(experiment_id):
        if trial.state.ended:
            continue
        for run in store.runs.list(trial.id):
            if run.ended is None:
                end_leftover(run.log_dir, _PATIENCE_SECONDS)
                clear_scratch(run)
                store.runs.end(run.id, "lost")


def scratch_of(run: Run) -> Path:
    """Return the directory for what a run's processes keep while they run."""
    return run.log_dir / "scratch"


def clear_scratch(run: Run) -> None:
    """Delete what a run's processes left, as those that are killed do."""
    shutil.rmtree(scratch_of(run), ignore_errors=True)


def adopt_spooled(store: Store, experiment_id: int) -> None:
    """Record the checkpoints that workers published after their driver was gone."""
    spool = store.experiment_dir(experiment_id) / "spool"
    if not spool.is_dir():
        return
    for note in sorted(spool.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        manifest = msgspec.json.decode(note.read_bytes(), type=Manifest)
        trial = store.trials.get(manifest.trial_id or 0)
        run = store.runs.list(trial.id)[-1]
        try:
            store.checkpoints.record(
                manifest.uuid,
                trial.id,
                run.id,
                manifest.batches,
                storage="",
                size=sum(file.size for file in manifest.files.values()),
                framework=manifest.framework,
            )
        except StoreError:
            pass  # recorded by the driver, whose answer was lost with it
        note.unlink()

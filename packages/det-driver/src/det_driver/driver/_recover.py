"""What a driver takes over from one that was killed, and what it leaves: runs, checkpoints, the experiment's state."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from det_core.checkpoint import Manifest
from det_core.config import ExperimentConfig, StorageConfig
from det_core.errors import StorageError, StoreError
from det_core.plugins import Plugins
from det_core.process import end_leftover
from det_core.storage import LocalStorage, Storage

from ..store import CheckpointState, ExperimentState, Store, TrialState
from ._retention import Candidate, to_delete
from ._starting import clear_scratch

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


def abandon(store: Store, experiment_id: int) -> None:
    """Record that nobody drives the experiment, and that its processes are gone; it may be resumed when it is mended."""
    with store.transaction():
        store.experiments.update(experiment_id, state=ExperimentState.ERROR, ended=time.time(), pid=None, boot=None)
        store.slots.stop_waiting(experiment_id)
        for trial in store.trials.list(experiment_id):
            if not trial.state.ended:
                store.trials.update(trial.id, state=TrialState.PAUSED)
                for run in store.runs.list(trial.id):
                    if run.ended is None:
                        store.runs.end(run.id, "abandoned")


def storage_of(config: ExperimentConfig, plugins: Plugins, root: Path) -> Storage:
    """Open the checkpoint storage that a configuration names, or the store's own below `root`."""
    chosen = config.checkpoint_storage
    if chosen is None:
        return LocalStorage(root)
    storage: Storage = plugins.storages()[chosen.type].open(chosen, root)
    return storage


def collect_garbage(
    store: Store, experiment_id: int, config: ExperimentConfig, plugins: Plugins, root: Path
) -> list[str]:
    """Delete the checkpoints that the configuration does not keep; return their uuids."""
    chosen = config.checkpoint_storage
    # A stranger's settings may say nothing of what to keep.
    keep = chosen if isinstance(chosen, StorageConfig) else StorageConfig()
    searcher = config.searcher
    rows = [
        Candidate(uuid=c.uuid, trial_id=c.trial_id, batches=c.batches, metric=c.metric)
        for c in store.checkpoints.list(experiment_id=experiment_id)
        if c.state is CheckpointState.COMPLETED
    ]
    doomed = to_delete(
        rows,
        save_experiment_best=keep.save_experiment_best,
        save_trial_best=keep.save_trial_best,
        save_trial_latest=keep.save_trial_latest,
        smaller_is_better=searcher.smaller_is_better if searcher else True,
        protected=store.trials.sources(),
    )
    if not doomed:
        return []
    storage = storage_of(config, plugins, root)
    for uuid in doomed:
        try:
            storage.delete(uuid)
        except StorageError:
            continue  # it stays listed, so that a later collection finds it
        store.checkpoints.mark_deleted(uuid)
    return doomed

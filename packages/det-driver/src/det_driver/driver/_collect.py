"""The garbage collection of an experiment's checkpoints."""

from __future__ import annotations

from pathlib import Path

from det_core.checkpoint import CheckpointRow, to_delete
from det_core.config import ExperimentConfig, StorageConfig
from det_core.errors import StorageError
from det_core.plugins import Plugins
from det_core.storage import LocalStorage, Storage

from ..store import CheckpointState, Store


def storage_of(config: ExperimentConfig, plugins: Plugins, root: Path) -> Storage:
    """Open the checkpoint storage that a configuration names, or the store's own below `root`."""
    chosen = config.checkpoint_storage
    if chosen is None:
        return LocalStorage(root)
    tag = str(type(chosen).__struct_config__.tag)
    storage: Storage = plugins.storages()[tag].open(chosen, root)
    return storage


def collect_garbage(
    store: Store, experiment_id: int, config: ExperimentConfig, plugins: Plugins, root: Path
) -> list[str]:
    """Delete the checkpoints that the configuration does not keep; return their uuids."""
    chosen = config.checkpoint_storage
    keep = (
        chosen if isinstance(chosen, StorageConfig) else StorageConfig()
    )  # a stranger's settings may say nothing of it
    searcher = config.searcher
    rows = [
        CheckpointRow(uuid=c.uuid, trial_id=c.trial_id, batches=c.batches, metric=c.metric)
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


__all__ = ["collect_garbage", "storage_of"]

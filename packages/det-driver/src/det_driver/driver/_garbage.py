"""Which checkpoints an experiment keeps when it ends, and the collection of the others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from det_core.config import ExperimentConfig, StorageConfig, from_json
from det_core.errors import StoreError
from det_core.launch import say
from det_core.plugins import Plugins, extensions_of

from ..store import CheckpointRow, CheckpointState, Store


def _expected(store: Store) -> Path:
    return store.home / "garbage"


def expect_garbage(store: Store, experiment_id: int) -> None:
    """Note that an experiment's checkpoints are to be collected, before it is recorded as ended; OSError is a full disk's."""
    with suppress(OSError):
        _expected(store).mkdir(exist_ok=True)
        (_expected(store) / str(experiment_id)).touch()


def collect_left(store: Store, plugins: Plugins) -> dict[int, list[str]]:
    """Collect what was left when a collection was interrupted; return the uuids that were deleted, by experiment."""
    deleted: dict[int, list[str]] = {}
    for note in sorted(_expected(store).glob("[0-9]*")):
        experiment = int(note.name)
        try:
            with store.lock(experiment):
                if store.experiments.get(experiment).state.ended:
                    deleted[experiment] = collect_garbage(store, experiment, plugins)
                else:
                    note.unlink(missing_ok=True)  # it was killed before that was recorded, or goes on
        except (StoreError, OSError):  # its driver does, where it has one
            with suppress(OSError):
                if not store.experiment_dir(experiment).exists():
                    note.unlink(missing_ok=True)  # else it cannot be read or written just now
    return deleted


def collect_garbage(store: Store, experiment_id: int, plugins: Plugins) -> list[str]:
    """Delete the checkpoints that an ended experiment's configuration does not keep; return their uuids.

    What cannot be deleted now, whatever the reason, stays listed and expected: the next driver, or `det gc`, tries again.
    """
    deleted: list[str] = []
    try:
        config = from_json(store.experiments.get(experiment_id).config, extensions=extensions_of(plugins))
        if doomed := _doomed(store, experiment_id, config):
            storage = plugins.storage_of(config, store.home / "checkpoints")
            for uuid in doomed:
                storage.delete(uuid)
                store.checkpoints.mark_deleted(uuid)
                deleted.append(uuid)
        (_expected(store) / str(experiment_id)).unlink(missing_ok=True)
    except Exception as error:  # the experiment has ended all the same, and others are not to wait for it
        left = f"checkpoints of experiment {experiment_id} that are not to be kept are still there"
        say(f"{left}: {error}; delete them later with det gc")
    return deleted


def _doomed(store: Store, experiment_id: int, config: ExperimentConfig) -> list[str]:
    chosen = config.checkpoint_storage
    # A stranger's settings may say nothing of what to keep.
    keep = chosen if isinstance(chosen, StorageConfig) else StorageConfig()
    rows = [
        row for row in store.checkpoints.list(experiment_id=experiment_id) if row.state is CheckpointState.COMPLETED
    ]
    smaller = config.searcher.smaller_is_better if config.searcher else True
    return to_delete(rows, keep, smaller_is_better=smaller, protected=store.trials.sources())


def to_delete(
    rows: Sequence[CheckpointRow],
    keep: StorageConfig,
    *,
    smaller_is_better: bool = True,
    protected: Collection[str] = (),
) -> list[str]:
    """Return the uuids that the policy does not keep, in the order of `rows`.

    Kept are the best of the experiment, the best and the latest of each trial, and those `protected`, which count in
    the ranking like the others. A metric that is None or NaN ranks nowhere; of equal ones the earlier position ranks
    first, as it was the first to be best.
    """
    sign = 1 if smaller_is_better else -1
    ranked = sorted(filter(_has_metric, rows), key=lambda row: (sign * (row.metric or 0.0), row.batches))
    kept = set(protected) | {row.uuid for row in ranked[: keep.save_experiment_best]}
    kept |= _first_of_each_trial(ranked, keep.save_trial_best)
    kept |= _first_of_each_trial(sorted(rows, key=lambda row: -row.batches), keep.save_trial_latest)
    return [row.uuid for row in rows if row.uuid not in kept]


def _has_metric(row: CheckpointRow) -> bool:
    return row.metric is not None and not math.isnan(row.metric)


def _first_of_each_trial(ranked: Sequence[CheckpointRow], count: int) -> set[str]:
    trials: dict[int, list[str]] = defaultdict(list)
    for row in ranked:
        trials[row.trial_id].append(row.uuid)
    return {uuid for uuids in trials.values() for uuid in uuids[:count]}

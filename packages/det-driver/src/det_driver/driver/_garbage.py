"""Which checkpoints an experiment keeps when it ends, and the deletion of the others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from det_core.config import ExperimentConfig, StorageConfig
from det_core.errors import StorageError, StoreError
from det_core.hooks import Plugins, extensions_of
from det_node.launch import say

from ..store import CheckpointRow, CheckpointState, Store
from ._deleting import Deleter


def _expected(store: Store) -> Path:
    return store.home / "garbage"


def expect_garbage(store: Store, experiment_id: int) -> None:
    """Mark an experiment for checkpoint collection, before it is recorded as ended.

    Errors such as a full disk are ignored.
    """
    with suppress(OSError):
        _expected(store).mkdir(exist_ok=True)
        (_expected(store) / str(experiment_id)).touch()


def collect_left(store: Store, plugins: Plugins) -> dict[int, list[str]]:
    """Finish interrupted collections. Return the deleted uuids by experiment."""
    deleted: dict[int, list[str]] = {}
    for note in sorted(_expected(store).glob("[0-9]*")):
        if not (note.name.isascii() and note.name.isdecimal()):
            # This file is not one of ours.
            continue
        experiment = int(note.name)
        try:
            with store.lock(experiment):
                if store.experiments.get(experiment).state.ended:
                    deleted[experiment] = collect_garbage(store, experiment, plugins)
                else:
                    # Its driver was killed before the end was recorded, or it was resumed.
                    note.unlink(missing_ok=True)
        except (StoreError, OSError):
            # Its driver collects, if it has one. Otherwise the store may be unusable for now.
            with suppress(OSError):
                if not store.experiment_dir(experiment).exists():
                    note.unlink(missing_ok=True)
    return deleted


def collect_garbage(store: Store, experiment_id: int, plugins: Plugins) -> list[str]:
    """Delete the checkpoints that an ended experiment's configuration does not keep.

    Returns their uuids. A checkpoint that cannot be deleted now stays listed and marked: the next
    driver, or `det gc`, tries again.
    """
    deleted: list[str] = []
    try:
        config = store.experiments.config(experiment_id, extensions_of(plugins))
        if doomed := _doomed(store, experiment_id, config):
            deleter = Deleter(store, experiment_id, config, plugins)
            refused: list[StorageError] = []
            for uuid in filter(deleter.may_delete, doomed):
                try:
                    with store.models.deleting():
                        # It may have become a version of a model after it was chosen.
                        if uuid in store.models.checkpoints():
                            continue
                        deleter.delete(uuid)
                except StorageError as error:
                    # One damaged checkpoint must not prevent the deletion of the others.
                    refused.append(error)
                    continue
                deleted.append(uuid)
            if refused:
                raise refused[0]
        (_expected(store) / str(experiment_id)).unlink(missing_ok=True)
    except Exception as error:
        # The experiment has ended nevertheless, and other experiments must not wait for it.
        left = f"checkpoints of experiment {experiment_id} that are not to be kept are still there"
        say(f"{left}: {error}; delete them later with det gc")
    return deleted


def _doomed(store: Store, experiment_id: int, config: ExperimentConfig) -> list[str]:
    chosen = config.checkpoint_storage
    # The settings of a third-party storage may lack a retention policy.
    keep = chosen if isinstance(chosen, StorageConfig) else StorageConfig()
    rows = [
        row
        for row in store.checkpoints.list(experiment_id=experiment_id)
        if row.state is CheckpointState.COMPLETED
    ]
    smaller = config.searcher.smaller_is_better if config.searcher else True
    protected = store.trials.sources(experiment_id) | store.models.checkpoints()
    doomed = to_delete(rows, keep, smaller_is_better=smaller, protected=protected)
    needed = store.checkpoints.elsewhere(experiment_id) if doomed else ()
    return [uuid for uuid in doomed if uuid not in needed]


def to_delete(
    rows: Sequence[CheckpointRow],
    keep: StorageConfig,
    *,
    smaller_is_better: bool = True,
    protected: Collection[str] = (),
) -> list[str]:
    """Return the uuids that the policy does not keep, in the order of `rows`.

    It keeps:

    - the best checkpoints of the experiment
    - the best and the latest checkpoints of each trial
    - those in `protected`, which count in the ranking like the others

    A metric that is None or NaN is not ranked. Among equal metrics the earlier position ranks
    first, because it was the best first.
    """
    sign = 1 if smaller_is_better else -1
    ranked = sorted(
        filter(_has_metric, rows), key=lambda row: (sign * (row.metric or 0.0), row.batches)
    )
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

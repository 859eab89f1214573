"""Which checkpoints an experiment keeps when it ends."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence

from det_core.config import StorageConfig

from ..store import CheckpointRow


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

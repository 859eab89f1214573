"""Samplers that repeat, skip, shard and shuffle, implemented by det-torch."""

from __future__ import annotations

from typing import Any

from .._names import borrow, plugin, same

_get, __dir__ = borrow(
    __name__,
    {
        "det_torch.samplers": same(
            "DistributedBatchSampler",
            "DistributedSampler",
            "RepeatBatchSampler",
            "RepeatSampler",
            "ReproducibleShuffleBatchSampler",
            "ReproducibleShuffleSampler",
            "SkipBatchSampler",
            "SkipSampler",
        )
    },
)

plugin("det_torch.samplers", __name__)


def __getattr__(name: str) -> Any:
    return _get(name)

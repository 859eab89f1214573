"""Horovod's part of an experiment configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from det_core.config import Optimizations

_MEGABYTE = 1 << 20


def settings(optimizations: Optimizations) -> dict[str, str]:
    """Return the variables of tensor fusion that `optimizations` of a configuration means."""
    found = {
        "HOROVOD_FUSION_THRESHOLD": str(optimizations.tensor_fusion_threshold * _MEGABYTE),
        "HOROVOD_CYCLE_TIME": f"{optimizations.tensor_fusion_cycle_time:g}",
    }
    return {**found, "HOROVOD_AUTOTUNE": "1"} if optimizations.auto_tune_tensor_fusion else found

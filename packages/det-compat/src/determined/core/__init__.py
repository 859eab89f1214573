"""Determined's Core API."""

from __future__ import annotations

from det_core.core import (
    CheckpointContext,
    Context,
    DownloadMode,
    EarlyExitReason,
    PreemptContext,
    PreemptMode,
    ProfilerContext,
    SearcherContext,
    SearcherMode,
    SearcherOperation,
    TensorboardMode,
    TrainContext,
    Unit,
    init,
)

from ._distributed import DistributedContext

DummyDistributedContext = DistributedContext
"""Called without arguments it is that of a single process."""

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "DummyDistributedContext",
    "EarlyExitReason",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "init",
]

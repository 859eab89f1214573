"""Determined's Core API."""

from __future__ import annotations

from det_core.core import (
    CheckpointContext,
    Context,
    DefaultConfig,
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
    UnmanagedConfig,
    init,
)

from ._distributed import DistributedContext

DummyDistributedContext = DistributedContext
"""Without arguments it is the context of a single process."""

__all__ = [
    "CheckpointContext",
    "Context",
    "DefaultConfig",
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
    "UnmanagedConfig",
    "init",
]

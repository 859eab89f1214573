"""The Core API: what a training script of any kind needs of det.

`with det_core.core.init() as context:` works in two places. Under `det run` it is connected to the
driver. Elsewhere it prints reports, keeps checkpoints in a directory, and is recorded in the home.
"""

from __future__ import annotations

from ..errors import ArgumentError
from ..ranks.distributed import DistributedContext
from ._checkpoint import CheckpointContext, DownloadMode
from ._context import ClusterInfo, Context, TrialInfo, get_cluster_info, init
from ._outside import DefaultConfig, UnmanagedConfig
from ._profiler import ProfilerContext
from ._searcher import (
    PreemptContext,
    PreemptMode,
    SearcherContext,
    SearcherMode,
    SearcherOperation,
    Unit,
)
from ._train import EarlyExitReason, TensorboardMode, TrainContext

__all__ = [
    "ArgumentError",
    "CheckpointContext",
    "ClusterInfo",
    "Context",
    "DefaultConfig",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "TrialInfo",
    "Unit",
    "UnmanagedConfig",
    "get_cluster_info",
    "init",
]

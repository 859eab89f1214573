"""The Core API: what a training script of any kind needs of det.

`with det_core.core.init() as context:` works under `det run`, where it talks to the driver, and outside of it, where it
prints what is reported and keeps checkpoints in a directory.
"""

from __future__ import annotations

from ..distributed import DistributedContext
from ._checkpoint import CheckpointContext, DownloadMode
from ._context import ClusterInfo, Context, TrialInfo, get_cluster_info, init
from ._profiler import ProfilerContext
from ._searcher import PreemptContext, PreemptMode, SearcherContext, SearcherMode, SearcherOperation, Unit
from ._train import EarlyExitReason, TensorboardMode, TrainContext

__all__ = [
    "CheckpointContext",
    "ClusterInfo",
    "Context",
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
    "get_cluster_info",
    "init",
]

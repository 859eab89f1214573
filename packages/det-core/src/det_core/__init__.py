"""det-core: everything about training a trial that no framework needs to know."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapter import Adapter, Build, Metrics, RunInfo
    from .backend import Backend, Communicator, Ranks, Serial
    from .distributed import DistributedContext
    from .entrypoint import load_trial
    from .errors import (
        CheckpointError,
        ConfigError,
        DetError,
        EntrypointError,
        ExperimentBusy,
        InvalidHP,
        MetricError,
        PluginError,
        StorageError,
        StoreError,
        TrialError,
    )
    from .hookspecs import hookimpl
    from .host import Flag, HostLost, Outcome, Target, TrialHost
    from .imports import import_from_path
    from .interrupts import preempted_by
    from .launcher import Launcher, Layout, Place
    from .local import LocalHost
    from .loop import Loop, LoopError, Progress, Stop
    from .metrics import number
    from .plugins import Plugins
    from .records import (
        BackendRecord,
        CommandRecord,
        EngineRecord,
        Framework,
        LauncherRecord,
        PluginConfig,
        SearcherRecord,
        StorageRecord,
    )
    from .run import Keep, restore, run_trial, train, train_from
    from .schedule import At, Every, Schedule
    from .session import Limited, Session
    from .trial_context import TrialContext

_HOMES = {
    "adapter": ("Adapter", "Build", "Metrics", "RunInfo"),
    "backend": ("Backend", "Communicator", "Ranks", "Serial"),
    "distributed": ("DistributedContext",),
    "entrypoint": ("load_trial",),
    "errors": (
        "CheckpointError",
        "ConfigError",
        "DetError",
        "EntrypointError",
        "ExperimentBusy",
        "InvalidHP",
        "MetricError",
        "PluginError",
        "StorageError",
        "StoreError",
        "TrialError",
    ),
    "hookspecs": ("hookimpl",),
    "host": ("Flag", "HostLost", "Outcome", "Target", "TrialHost"),
    "imports": ("import_from_path",),
    "interrupts": ("preempted_by",),
    "launcher": ("Launcher", "Layout", "Place"),
    "local": ("LocalHost",),
    "metrics": ("number",),
    "loop": ("Loop", "LoopError", "Progress", "Stop"),
    "plugins": ("Plugins",),
    "records": (
        "BackendRecord",
        "CommandRecord",
        "EngineRecord",
        "Framework",
        "LauncherRecord",
        "PluginConfig",
        "SearcherRecord",
        "StorageRecord",
    ),
    "run": ("Keep", "restore", "run_trial", "train", "train_from"),
    "schedule": ("At", "Every", "Schedule"),
    "session": ("Limited", "Session"),
    "trial_context": ("TrialContext",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Adapter",
    "At",
    "Backend",
    "BackendRecord",
    "Build",
    "CheckpointError",
    "CommandRecord",
    "Communicator",
    "ConfigError",
    "DetError",
    "DistributedContext",
    "EngineRecord",
    "EntrypointError",
    "Every",
    "ExperimentBusy",
    "Flag",
    "Framework",
    "HostLost",
    "InvalidHP",
    "Keep",
    "Launcher",
    "LauncherRecord",
    "Layout",
    "Limited",
    "LocalHost",
    "Loop",
    "LoopError",
    "MetricError",
    "Metrics",
    "Outcome",
    "Place",
    "PluginConfig",
    "PluginError",
    "Plugins",
    "Progress",
    "Ranks",
    "RunInfo",
    "Schedule",
    "SearcherRecord",
    "Serial",
    "Session",
    "Stop",
    "StorageError",
    "StorageRecord",
    "StoreError",
    "Target",
    "TrialContext",
    "TrialError",
    "TrialHost",
    "hookimpl",
    "import_from_path",
    "load_trial",
    "number",
    "preempted_by",
    "restore",
    "run_trial",
    "train",
    "train_from",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `import det_core` costs almost nothing."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'det_core' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

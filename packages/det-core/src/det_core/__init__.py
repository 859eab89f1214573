"""det-core: what plugins and scripts are written against.

It opens no connection and starts no process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .support.lazy import lazy

if TYPE_CHECKING:
    from .errors import CheckpointDamaged as CheckpointDamaged
    from .errors import CheckpointError as CheckpointError
    from .errors import ConfigError as ConfigError
    from .errors import DetError as DetError
    from .errors import EntrypointError as EntrypointError
    from .errors import ExperimentBusy as ExperimentBusy
    from .errors import InvalidHP as InvalidHP
    from .errors import MetricError as MetricError
    from .errors import PluginError as PluginError
    from .errors import StorageError as StorageError
    from .errors import StoreError as StoreError
    from .errors import TrialError as TrialError
    from .hooks import Plugins as Plugins
    from .hooks.hookspecs import hookimpl as hookimpl
    from .hooks.records import CommandRecord as CommandRecord
    from .hooks.records import EngineRecord as EngineRecord
    from .hooks.records import EnvironmentRecord as EnvironmentRecord
    from .hooks.records import Framework as Framework
    from .hooks.records import LauncherRecord as LauncherRecord
    from .hooks.records import PluginConfig as PluginConfig
    from .hooks.records import SearcherRecord as SearcherRecord
    from .hooks.records import StorageRecord as StorageRecord
    from .ranks.backend import Backend as Backend
    from .ranks.backend import BackendRecord as BackendRecord
    from .ranks.backend import Communicator as Communicator
    from .ranks.backend import Ranks as Ranks
    from .ranks.backend import Serial as Serial
    from .ranks.distributed import DistributedContext as DistributedContext
    from .ranks.launcher import Launcher as Launcher
    from .ranks.launcher import Layout as Layout
    from .ranks.launcher import Place as Place
    from .support.imports import import_from_path as import_from_path
    from .train.adapter import Adapter as Adapter
    from .train.adapter import Build as Build
    from .train.adapter import Loop as Loop
    from .train.adapter import Metrics as Metrics
    from .train.adapter import RunInfo as RunInfo
    from .train.adapter import Stop as Stop
    from .train.entrypoint import load_trial as load_trial
    from .train.host import Flag as Flag
    from .train.host import HostLost as HostLost
    from .train.host import Outcome as Outcome
    from .train.host import Target as Target
    from .train.host import TrialHost as TrialHost
    from .train.interrupts import preempted_by as preempted_by
    from .train.local import LocalHost as LocalHost
    from .train.loop import LoopError as LoopError
    from .train.loop import Progress as Progress
    from .train.loop import RunLoop as RunLoop
    from .train.metrics import number as number
    from .train.run import restore as restore
    from .train.run import run_trial as run_trial
    from .train.run import train_from as train_from
    from .train.saving import CheckpointSink as CheckpointSink
    from .train.schedule import At as At
    from .train.schedule import Every as Every
    from .train.schedule import Schedule as Schedule
    from .train.session import Limited as Limited
    from .train.session import Session as Session
    from .train.trial_context import TrialContext as TrialContext

__version__ = "0.1.0"

lazy(__name__)

"""det-core: everything about training a trial that no framework needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy

if TYPE_CHECKING:
    from .adapter import Adapter as Adapter
    from .adapter import Build as Build
    from .adapter import Loop as Loop
    from .adapter import Metrics as Metrics
    from .adapter import RunInfo as RunInfo
    from .adapter import Stop as Stop
    from .backend import Backend as Backend
    from .backend import BackendRecord as BackendRecord
    from .backend import Communicator as Communicator
    from .backend import Ranks as Ranks
    from .backend import Serial as Serial
    from .distributed import DistributedContext as DistributedContext
    from .entrypoint import load_trial as load_trial
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
    from .hookspecs import hookimpl as hookimpl
    from .host import Flag as Flag
    from .host import HostLost as HostLost
    from .host import Outcome as Outcome
    from .host import Target as Target
    from .host import TrialHost as TrialHost
    from .imports import import_from_path as import_from_path
    from .interrupts import preempted_by as preempted_by
    from .launcher import Launcher as Launcher
    from .launcher import Layout as Layout
    from .launcher import Place as Place
    from .local import LocalHost as LocalHost
    from .loop import LoopError as LoopError
    from .loop import Progress as Progress
    from .loop import RunLoop as RunLoop
    from .metrics import number as number
    from .plugins import Plugins as Plugins
    from .records import CommandRecord as CommandRecord
    from .records import EngineRecord as EngineRecord
    from .records import EnvironmentRecord as EnvironmentRecord
    from .records import Framework as Framework
    from .records import LauncherRecord as LauncherRecord
    from .records import PluginConfig as PluginConfig
    from .records import SearcherRecord as SearcherRecord
    from .records import StorageRecord as StorageRecord
    from .run import restore as restore
    from .run import run_trial as run_trial
    from .run import train_from as train_from
    from .saving import Keep as Keep
    from .schedule import At as At
    from .schedule import Every as Every
    from .schedule import Schedule as Schedule
    from .session import Limited as Limited
    from .session import Session as Session
    from .trial_context import TrialContext as TrialContext

__version__ = "0.1.0"

lazy(__name__)

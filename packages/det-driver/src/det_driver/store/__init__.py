"""The store of experiments: SQLite databases in the user's home for det.

All SQL is in this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from ._bulk import BulkWriter as BulkWriter
    from ._bulk import NumberConflict as NumberConflict
    from ._bulk import PastExperiment as PastExperiment
    from ._bulk import bulk_writer as bulk_writer
    from ._bulk import clear_unfinished as clear_unfinished
    from ._chunks import Report as Report
    from ._database import Database as Database
    from ._databases import Visible as Visible
    from ._experiments import Description as Description
    from ._journal import DESCRIBE_COMMAND as DESCRIBE_COMMAND
    from ._locks import SEVERAL as SEVERAL
    from ._locks import boot_id as boot_id
    from ._locks import is_shared as is_shared
    from ._locks import network_file_system as network_file_system
    from ._log_times import LogClock as LogClock
    from ._log_times import LogTimes as LogTimes
    from ._models import ModelChanges as ModelChanges
    from ._models import Models as Models
    from ._models import VersionChanges as VersionChanges
    from ._moving import export_experiment as export_experiment
    from ._moving import import_experiment as import_experiment
    from ._moving import missing_secrets as missing_secrets
    from ._records import AlertRow as AlertRow
    from ._records import CheckpointRow as CheckpointRow
    from ._records import CheckpointState as CheckpointState
    from ._records import CommandRow as CommandRow
    from ._records import Event as Event
    from ._records import ExperimentRow as ExperimentRow
    from ._records import ExperimentState as ExperimentState
    from ._records import ExperimentSummary as ExperimentSummary
    from ._records import Lease as Lease
    from ._records import Metric as Metric
    from ._records import ModelRow as ModelRow
    from ._records import ModelVersionRow as ModelVersionRow
    from ._records import Run as Run
    from ._records import RunSpan as RunSpan
    from ._records import Snapshot as Snapshot
    from ._records import TrialRow as TrialRow
    from ._records import TrialState as TrialState
    from ._records import show_progress as show_progress
    from ._schema import JOURNAL as JOURNAL
    from ._schema import NO_JOURNAL as NO_JOURNAL
    from ._schema import OUTSIDE as OUTSIDE
    from ._schema import dump as dump
    from ._schema import load as load
    from ._slots import QueueView as QueueView
    from ._sources import ScriptSource as ScriptSource
    from ._sources import SourceState as SourceState
    from ._store import Store as Store
    from ._trials import TrialsMark as TrialsMark
    from ._trust import account_in as account_in
    from ._trust import check_code as check_code
    from ._trust import check_trusted as check_trusted
    from ._trust import checkpoint_root as checkpoint_root
    from ._trust import is_trusted as is_trusted
    from ._trust import refuse_code as refuse_code
    from ._trust import storage_of as storage_of
    from ._trust import storage_of_checkpoint as storage_of_checkpoint
    from ._trust import trust as trust
    from ._wakeups import COMMAND as COMMAND
    from ._wakeups import Wakeups as Wakeups

lazy(__name__)

"""The store of experiments: SQLite in the user's home for det, with all of its SQL in this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.lazy import lazy

if TYPE_CHECKING:
    from ._experiments import Description as Description
    from ._locks import SEVERAL as SEVERAL
    from ._locks import boot_id as boot_id
    from ._locks import is_shared as is_shared
    from ._locks import network_file_system as network_file_system
    from ._moving import export_experiment as export_experiment
    from ._moving import import_experiment as import_experiment
    from ._records import CheckpointRow as CheckpointRow
    from ._records import CheckpointState as CheckpointState
    from ._records import Event as Event
    from ._records import ExperimentRow as ExperimentRow
    from ._records import ExperimentState as ExperimentState
    from ._records import ExperimentSummary as ExperimentSummary
    from ._records import Lease as Lease
    from ._records import Metric as Metric
    from ._records import Run as Run
    from ._records import Snapshot as Snapshot
    from ._records import TrialRow as TrialRow
    from ._records import TrialState as TrialState
    from ._schema import JOURNAL as JOURNAL
    from ._schema import dump as dump
    from ._schema import load as load
    from ._store import Store as Store
    from ._trials import TrialsMark as TrialsMark

lazy(__name__)

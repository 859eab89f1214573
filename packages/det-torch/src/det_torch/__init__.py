"""PyTorch for det: trials, data loaders with exact resume, callbacks, reducers and a Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .callbacks import ClipGradsL2Norm as ClipGradsL2Norm
    from .callbacks import ClipGradsL2Value as ClipGradsL2Value
    from .callbacks import PyTorchCallback as PyTorchCallback
    from .context import PyTorchTrialContext as PyTorchTrialContext
    from .data import DataLoader as DataLoader
    from .data import TorchData as TorchData
    from .data import TrainingStream as TrainingStream
    from .data import cached as cached
    from .data import clean_shared_memory as clean_shared_memory
    from .data import data_length as data_length
    from .data import to_device as to_device
    from .load import CheckpointLoadContext as CheckpointLoadContext
    from .load import load_trial_from_checkpoint_path as load_trial_from_checkpoint_path
    from .lr import LRScheduler as LRScheduler
    from .reducers import MetricReducer as MetricReducer
    from .reduction import Reducer as Reducer
    from .result import FitResult as FitResult
    from .result import Report as Report
    from .result import SavedCheckpoint as SavedCheckpoint
    from .trainer import Trainer as Trainer
    from .trainer import init as init
    from .trial import PyTorchTrial as PyTorchTrial
    from .trial import reset_parameters as reset_parameters
    from .units import Batch as Batch
    from .units import Epoch as Epoch
    from .units import TrainUnit as TrainUnit

__version__ = "0.1.0"

lazy(__name__)

"""PyTorch Lightning for det: its own Trainer under det's schedule, a callback for scripts, and
Horovod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .horovod import HorovodStrategy as HorovodStrategy
    from .load import load_trial_from_checkpoint_path as load_trial_from_checkpoint_path
    from .script import DetCallback as DetCallback
    from .script import trainer as trainer
    from .trial import LightningAdapter as LightningAdapter
    from .trial import LightningTrialContext as LightningTrialContext

__version__ = "0.1.0"

lazy(__name__)

"""Keras for det: trials, five kinds of data with exact resume, and callbacks for own scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

from ._hooks import need_tensorflow

if TYPE_CHECKING:
    from . import callbacks as callbacks
    from .callbacks import TFKerasTensorBoard as TFKerasTensorBoard
    from .context import TFKerasTrialContext as TFKerasTrialContext
    from .data import InputData as InputData
    from .data import SequenceAdapter as SequenceAdapter
    from .determined_callback import DeterminedCallback as DeterminedCallback
    from .load import load_model_from_checkpoint_path as load_model_from_checkpoint_path
    from .native import TFKerasNativeContext as TFKerasNativeContext
    from .native import init as init
    from .tensorboard import TensorBoard as TensorBoard
    from .trial import TFKerasTrial as TFKerasTrial

__version__ = "0.1.0"

lazy(__name__, before=need_tensorflow)

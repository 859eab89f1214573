"""TensorFlow's Estimator for det.

Trials with exact resume, TF1-style graphs, exporters and run hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

from ._imports import need_tensorflow

if TYPE_CHECKING:
    from .context import EstimatorTrialContext as EstimatorTrialContext
    from .load import load_estimator_from_checkpoint_path as load_estimator_from_checkpoint_path
    from .metrics import MetricReducer as MetricReducer
    from .native import EstimatorNativeContext as EstimatorNativeContext
    from .native import init as init
    from .trial import EstimatorTrial as EstimatorTrial
    from .trial import RunHook as RunHook
    from .trial import ServingInputReceiverFn as ServingInputReceiverFn

__version__ = "0.1.0"

lazy(__name__, before=need_tensorflow)

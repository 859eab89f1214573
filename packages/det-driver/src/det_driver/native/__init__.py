"""The Native API: a script, or a notebook, that is its own experiment.

`create(trial_class, config, mode)` is for trial classes of any framework; plugins build the `init()` of their own on `begin`.
"""

from __future__ import annotations

from ._begin import Place, begin
from ._context import NativeContext
from ._create import create
from ._hyperparameters import Categorical, Constant, Double, Integer, Log
from ._loading import Found, take_over
from ._local import LocalResult, train_here
from ._mode import Mode

__all__ = [
    "Categorical",
    "Constant",
    "Double",
    "Found",
    "Integer",
    "LocalResult",
    "Log",
    "Mode",
    "NativeContext",
    "Place",
    "begin",
    "create",
    "take_over",
    "train_here",
]

"""The Native API: a script, or a notebook, that is its own experiment.

`create(trial_class, config, mode)` is for trial classes of any framework. Plugins build their own
`init()` on `begin`.
"""

from __future__ import annotations

from ._begin import LocalResult, Mode, NativeContext, ScriptPlace, begin, create, train_here
from ._hyperparameters import Categorical, Constant, Double, Integer, Log
from .script import take_over

__all__ = [
    "Categorical",
    "Constant",
    "Double",
    "Integer",
    "LocalResult",
    "Log",
    "Mode",
    "NativeContext",
    "ScriptPlace",
    "begin",
    "create",
    "take_over",
    "train_here",
]

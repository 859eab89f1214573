"""The model of a script: saved whole, and restored to train on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from det_core import TrialError

from .state import is_plain
from .versions import KERAS_3
from .weights import see_built

_LEGACY = "legacy_optimizer.npz"


def save_weights(model: Any, path: str, rank: int) -> None:
    """Write `{path}.weights.h5`: weights, and the optimizer's state; every rank reads its model, the chief's file stays.

    Some strategies need all workers for that.
    """
    see_built(model)
    if rank:
        with tempfile.TemporaryDirectory(prefix="det-scratch-") as scratch:
            model.save_weights(str(Path(scratch) / "model.weights.h5"))
        return
    model.save_weights(f"{path}.weights.h5")
    if _is_legacy(model.optimizer):
        np.savez(Path(path).parent / _LEGACY, *model.optimizer.get_weights())


def load_weights(model: Any, path: str) -> None:
    """Read what `save_weights` wrote."""
    with model.distribute_strategy.scope():
        _build_optimizer(model)
        model.load_weights(f"{path}.weights.h5")
        legacy = Path(path).parent / _LEGACY
        if _is_legacy(model.optimizer) and legacy.is_file():
            with np.load(legacy, allow_pickle=False) as arrays:
                model.optimizer.set_weights([arrays[name] for name in arrays.files])


def shape_of(model: Any) -> Any:
    """Return what a model that gets its shape from the first batch must be told to be built without one."""
    try:
        config = model.get_build_config()
    except Exception:  # whatever a user's model raises: it then has to be built by the user
        return None
    return config if is_plain(config) else None


def build(model: Any, shape: Any) -> None:
    """Build a model that is not. Raises TrialError where that is impossible."""
    see_built(model)
    if model.built:
        return
    try:
        with model.distribute_strategy.scope():
            model.build_from_config(shape)
    except Exception as error:  # see above
        raise TrialError(_unbuilt(model)) from error
    if not model.built:
        raise TrialError(_unbuilt(model))


def start_at(model: Any, epoch: int | None) -> None:
    """Let the `fit` that is beginning start at an epoch, counted from 0, or the next one where it likes.

    This is how Keras's own BackupAndRestore does it.
    """
    if KERAS_3:
        model._initial_epoch = epoch
    else:
        model._training_state = None if epoch is None else _At(epoch)


class _At:
    """What Keras 2 asks for the place to start."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self._epoch, 0


def steps_at_once(model: Any) -> int:
    """Return how many batches Keras trains between two callbacks."""
    steps = model.steps_per_execution if KERAS_3 else model._steps_per_execution
    return 1 if steps is None else int(steps.numpy() if hasattr(steps, "numpy") else steps)


def _build_optimizer(model: Any) -> None:
    optimizer = model.optimizer
    if _is_legacy(optimizer):
        optimizer._create_all_weights(model.trainable_variables)
    elif optimizer is not None and not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        optimizer.build(model.trainable_variables)


def _is_legacy(optimizer: Any) -> bool:
    """Tell whether it is an optimizer of Keras before 2.11, whose state Keras's file format leaves out."""
    return hasattr(optimizer, "_create_all_weights")


def _unbuilt(model: Any) -> str:
    return (
        f"the model {model.name!r} has no weights yet when fit() begins, so a checkpoint cannot be restored; begin it with "
        "keras.Input(shape), or call it on a batch before fit()"
    )

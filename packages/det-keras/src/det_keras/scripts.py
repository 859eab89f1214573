"""Saves the model of a script, and restores it to train on."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from det_core import CheckpointError, DetError, TrialError
from det_core.support.archives import check_zip

from .attributes import find_optimizers, find_variables
from .old_weights import read_old_weights
from .optim import variables_of
from .sizes import check_weights
from .state import is_plain
from .versions import KERAS_3, keras
from .weights import see_built

_LEGACY = "legacy_optimizer.npz"


def save_weights(model: Any, path: str, rank: int) -> None:
    """Write `{path}.weights.h5`: weights, and the optimizer's state.

    Every rank must call it, because some strategies need all workers to read the model. Only the
    chief's file is kept.
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
    """Read the files of `save_weights`, or the weights that Determined's callback saved.

    Raises CheckpointError if they are damaged or another model's.
    """
    file, old = Path(f"{path}.weights.h5"), Path(f"{path}.index")
    if not file.is_file() and old.is_file():
        file = old
    check_weights(file)
    with model.distribute_strategy.scope():
        build_optimizer(model)
        try:
            if file == old:
                read_old_weights(model, file)
            else:
                model.load_weights(str(file))
        except DetError:
            raise
        # Keras and h5py raise errors of many types for malformed files.
        except Exception as error:
            reason = next(
                filter(None, map(str.strip, str(error).splitlines())), type(error).__name__
            )
            raise CheckpointError(
                f"{file} cannot be read: {reason}; it is damaged, or of another model than the"
                " script's"
            ) from error
        legacy = Path(path).parent / _LEGACY
        if _is_legacy(model.optimizer) and legacy.is_file():
            check_zip(legacy)
            with np.load(legacy, allow_pickle=False) as arrays:
                model.optimizer.set_weights([arrays[name] for name in arrays.files])


def shape_of(model: Any) -> Any:
    """Return the build configuration of a model, or None.

    With it, the model can be built without a first batch.
    """
    try:
        config = _plain(model.get_build_config())
    # A user's model may raise anything. Then the user must build it.
    except Exception:
        return None
    return config if is_plain(config) else None


def _plain(value: Any) -> Any:
    """Return a value with the dicts, lists and tuples in which Keras tracks those of a model."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    # A named tuple has fields, which the model may read.
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        items = [_plain(inner) for inner in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def build(model: Any, shape: Any) -> None:
    """Build a model if it is not built. Raises TrialError if that is impossible."""
    if model.built:
        return
    failure = None
    try:
        with model.distribute_strategy.scope():
            if shape:
                model.build_from_config(_of_several_inputs(shape))
    # A user's model may raise anything.
    except Exception as error:
        failure = error
    # Keras 3.15 makes the weights of a subclass without marking it as built. Only now, as a model
    # that made some of its weights itself gets the others from the shape.
    see_built(model)
    if not model.built:
        raise TrialError(unbuilt(model)) from failure


def lacks_weights(model: Any) -> bool:
    """Return whether only a shape, or a first batch, gives the model its weights."""
    return not (model.built or (KERAS_3 and model.weights))


def _of_several_inputs(config: Any) -> Any:
    """Return a build configuration that Keras 2 can use.

    For several inputs, it needs a list of shapes.
    """
    shape = config.get("input_shape") if isinstance(config, dict) else None
    if (
        KERAS_3
        or not isinstance(shape, tuple)
        or not any(isinstance(each, tuple) for each in shape)
    ):
        return config
    return {**config, "input_shape": list(shape)}


def start_at(model: Any, epoch: int | None) -> None:
    """Make the `fit` that begins start at an epoch, counted from 0.

    None lets the next `fit` decide. Keras's own BackupAndRestore does it the same way.
    """
    if KERAS_3:
        model._initial_epoch = epoch
    else:
        model._training_state = None if epoch is None else _At(epoch)


class _At:
    """The object that Keras 2 asks for the epoch to start at."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self._epoch, 0


def other_optimizers(model: Any) -> list[Any]:
    """Return a model's optimizers except the one that it is compiled with."""
    optimizer = model.optimizer
    own = (optimizer, getattr(optimizer, "inner_optimizer", None))
    return [each for each in find_optimizers(model) if not any(each is known for known in own)]


def attributes_of(model: Any, generators: Sequence[Any]) -> dict[str, Any]:
    """Return the variables in a model's attributes.

    Those in its weights file or in `generators` are left out.
    """
    optimizers = [each for each in (model.optimizer, *other_optimizers(model)) if each is not None]
    held = [variable for each in optimizers for variable in variables_of(each)]
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    return find_variables(model, [*held, *metrics, *generators])


def put_best_weights(model: Any, callbacks: Sequence[Any]) -> None:
    """Set the best weights of an EarlyStopping that ended training in an earlier process."""
    for each in callbacks:
        if (
            isinstance(each, keras.callbacks.EarlyStopping)
            and each.restore_best_weights
            and each.best_weights
        ):
            model.set_weights(each.best_weights)


def steps_trained(model: Any) -> int:
    """Return the number of steps that the optimizer has taken, or 0 if there is none."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    iterations = getattr(optimizer, "_iterations", getattr(optimizer, "iterations", None))
    return 0 if iterations is None else int(iterations.numpy())


def steps_at_once(model: Any) -> int:
    """Return the number of batches that Keras trains between two calls of callbacks."""
    steps = model.steps_per_execution if KERAS_3 else model._steps_per_execution
    return 1 if steps is None else int(steps.numpy() if hasattr(steps, "numpy") else steps)


def build_optimizer(model: Any) -> None:
    """Make the variables of a model's optimizer."""
    optimizer = model.optimizer
    if _is_legacy(optimizer):
        optimizer._create_all_weights(model.trainable_variables)
    elif optimizer is not None and not getattr(
        optimizer, "built", getattr(optimizer, "_built", False)
    ):
        optimizer.build(model.trainable_variables)


def _is_legacy(optimizer: Any) -> bool:
    """Return whether it is an optimizer of Keras before 2.11.

    Keras's file format leaves out the state of such optimizers.
    """
    return hasattr(optimizer, "_create_all_weights")


def unbuilt(model: Any) -> str:
    """Return the sentence about a model that no checkpoint can build."""
    return (
        f"the model {model.name!r} has no weights yet when fit() begins, so a checkpoint cannot be"
        " restored; begin it with keras.Input(shape), or call it on a batch before fit()"
    )

"""Makes a trial with its model and optimizers, and checks them."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import tensorflow as tf

from det_core import TrialError
from det_core.train.entrypoint import make_trial

from .attributes import find_optimizers
from .context import TFKerasTrialContext
from .metrics import MetricObjects
from .optim import release_optimizer
from .rng import variable_of
from .trial import TFKerasTrial
from .versions import KERAS_VERSION, keras


def build_trial(trial_class: type[TFKerasTrial], context: TFKerasTrialContext) -> TFKerasTrial:
    """Make a trial. Raises TrialError for a class that lacks a required method."""
    with refusals_explained():
        return make_trial(trial_class, TFKerasTrial, context)


def build_model(trial: Any, context: TFKerasTrialContext) -> Any:
    """Make and return the trial's model, wrapped.

    If the trial defines `build_optimizer`, its optimizer is made first.
    """
    name = type(trial).__name__
    build = getattr(trial, "build_optimizer", None)
    with refusals_explained():
        if inspect.isroutine(build):
            trial.optimizer = context.wrap_optimizer(build())
        model = trial.build_model()
    if not isinstance(model, keras.Model):
        raise TrialError(
            f"{name}.build_model returned {type(model).__name__}; return a keras.Model, compiled"
        )
    model = context.wrap_model(model)
    if not is_compiled(model):
        raise TrialError(
            f"{name}.build_model returned a model that is not compiled; call"
            " model.compile(optimizer, loss) in it"
        )
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise TrialError(
            f"{name}.build_model made its model under {type(model.distribute_strategy).__name__};"
            " leave the strategy out and set resources.slots_per_trial: det reduces gradients by"
            " itself"
        )
    _wrap_optimizers(model, context)
    return model


def trace(model: Any, batch: Any, *, always: bool = False) -> None:
    """Trace the model's `train_step` for a batch of this structure, if variables are still missing.

    Keras's `fit` traces first too, so that the variables get the same initial values. Errors of a
    step are ignored here, because the step raises them again in training.
    """
    if not model.run_eagerly and (
        always or not (model.built and all(layer.built for layer in model.layers))
    ):
        with contextlib.suppress(Exception):
            tf.function(model.train_step).get_concrete_function(batch)


def training_step(model: Any, batches: Any, objects: MetricObjects) -> Callable[[int], None] | None:
    """Return a function that trains with one batch a number of times, and changes only metrics.

    Return None for an eager model, whose step may change anything.
    """
    if model.run_eagerly:
        return None
    batch = next(iter(batches), None)
    try:
        step = tf.function(model.train_step).get_concrete_function(batch)
    # Training raises the errors of a step again.
    except Exception:
        return lambda times: None
    counted = {id(variable_of(each)) for each in objects.variables()}
    variables = [each for each in step.variables if id(each) not in counted]
    values = [variable.numpy() for variable in variables]

    def train(times: int) -> None:
        for _ in range(times):
            step(batch)
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    return train


def reset_states(model: Any) -> None:
    """Reset recurrent layers that keep their states over batches."""
    for layer in model._flatten_layers():
        reset = getattr(layer, "reset_state", None) or getattr(layer, "reset_states", None)
        if (
            reset is not None
            and getattr(layer, "stateful", False)
            and isinstance(layer, keras.layers.RNN)
        ):
            reset()


def is_compiled(model: Any) -> bool:
    """Return whether `compile` was called."""
    return bool(getattr(model, "compiled", False) or getattr(model, "_is_compiled", False))


def _wrap_optimizers(model: Any, context: TFKerasTrialContext) -> None:
    """Wrap the optimizer that the model was compiled with, and all others in its attributes.

    For mixed precision, Keras puts a wrapped optimizer into another one. Then the outer one is
    wrapped instead: all ranks must see the same gradients before one of them skips a step.
    """
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and any(inner is known for known in context.optimizers):
        context.optimizers[:] = [known for known in context.optimizers if known is not inner]
        release_optimizer(inner)
    others = [each for each in find_optimizers(model) if each is not optimizer]
    for each in others if optimizer is None else [optimizer, *others]:
        if any(getattr(each, "inner_optimizer", None) is known for known in context.optimizers):
            continue
        wrapped = context.wrap_optimizer(each)
        if wrapped is each:
            continue
        if each is not optimizer:
            raise TrialError(
                f"a plugin gives another object for the {type(each).__name__} in the model's"
                " attributes; put what context.wrap_optimizer(optimizer) returns there"
            )
        model.optimizer = wrapped


_IN_PLACE = {
    "decay": "learning_rate=keras.optimizers.schedules.InverseTimeDecay(RATE, 1, DECAY)",
    "lr": "learning_rate",
}
_NOT_THE_USERS = {"absl", "det_core", "det_keras", "det_node", "keras", "tensorflow", "tf_keras"}


@contextmanager
def refusals_explained() -> Iterator[None]:
    """Turn Keras's error about a removed optimizer argument into a TrialError.

    It says which line to change, and how.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        name, at = _refused(str(error)), _line(error.__traceback__)
        if name is None or at is None:
            raise
        file, line, text = at
        raise TrialError(
            f"{file}:{line}: Keras {KERAS_VERSION} takes no {name}; give {_IN_PLACE[name]} in its"
            f" place: {text}"
        ) from error


def _refused(message: str) -> str | None:
    """Return the removed argument that Keras's message is about, or None for other messages."""
    found = re.match(
        r"`?(\w+)`? is deprecated in the new Keras optimizer|Argument\(s\) not recognized:"
        r" \{'(\w+)'",
        message,
    )
    name = found and (found[1] or found[2])
    return name if name in _IN_PLACE else None


def _line(trace: TracebackType | None) -> tuple[str, int, str] | None:
    """Return the last line of the user's code in a traceback: its file, number and text."""
    known = [
        (frame, line)
        for frame, line in traceback.walk_tb(trace)
        if _home(frame) not in _NOT_THE_USERS
    ]
    if not known:
        return None
    frame, line = known[-1]
    file = frame.f_code.co_filename
    return Path(file).name, line, linecache.getline(file, line).strip()


def _home(frame: FrameType) -> str:
    """Return the top-level package of a frame's code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]

"""Making a trial: its model, its optimizers, and what must hold of them."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import tensorflow as tf

from det_core import TrialError
from det_core.entrypoint import make_trial

from .context import TFKerasTrialContext
from .optim import release_optimizer
from .refusals import refusals_explained
from .trial import TFKerasTrial
from .versions import keras


def build_trial(trial_class: type[TFKerasTrial], context: TFKerasTrialContext) -> TFKerasTrial:
    """Make a trial. Raises TrialError for a class that lacks a method which every trial must have."""
    with refusals_explained():
        return make_trial(trial_class, TFKerasTrial, context)


def build_model(trial: Any, context: TFKerasTrialContext) -> Any:
    """Make the trial's model, with its optimizer where the trial builds that by itself, and return it wrapped."""
    name = type(trial).__name__
    build = getattr(trial, "build_optimizer", None)
    with refusals_explained():
        if inspect.isroutine(build):
            trial.optimizer = context.wrap_optimizer(build())
        model = trial.build_model()
    if not isinstance(model, keras.Model):
        raise TrialError(f"{name}.build_model returned {type(model).__name__}; return a keras.Model, compiled")
    model = context.wrap_model(model)
    if not is_compiled(model):
        raise TrialError(
            f"{name}.build_model returned a model that is not compiled; call model.compile(optimizer, loss) in it"
        )
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise TrialError(
            f"{name}.build_model made its model under {type(model.distribute_strategy).__name__}; leave the strategy out and set "
            "resources.slots_per_trial: det reduces gradients by itself"
        )
    _wrap_optimizers(model, context)
    return model


def trace(model: Any, batch: Any) -> None:
    """Trace the model's `train_step`, for a batch of such a structure, where that makes variables that the model lacks.

    Keras's `fit` does so before anything else, so that they begin as they do there. What a step raises, it raises when it trains.
    """
    if not model.run_eagerly and not (model.built and all(layer.built for layer in model.layers)):
        with contextlib.suppress(Exception):
            tf.function(model.train_step).get_concrete_function(batch)


def is_compiled(model: Any) -> bool:
    """Tell whether `compile` was called."""
    return bool(getattr(model, "compiled", False) or getattr(model, "_is_compiled", False))


def _wrap_optimizers(model: Any, context: TFKerasTrialContext) -> None:
    """Wrap the optimizer that the model was compiled with, unless the trial wrapped those that it uses.

    Where Keras has put a wrapped one inside of another, for mixed precision, the outer one takes its place: all ranks must
    see the same gradients before any of them skips a step.
    """
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and any(inner is known for known in context.optimizers):
        context.optimizers[:] = [known for known in context.optimizers if known is not inner]
        release_optimizer(inner)
    elif context.optimizers or optimizer is None:
        return
    wrapped = context.wrap_optimizer(optimizer)
    if wrapped is not optimizer:
        model.optimizer = wrapped

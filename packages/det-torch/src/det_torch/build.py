"""Making a trial: its context, its parts in either style, and what its methods look like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from det_core import TrialError

from .context import PyTorchTrialContext
from .lr import LRScheduler
from .trial import PyTorchTrial


def build_trial(trial_class: type[PyTorchTrial], context: PyTorchTrialContext, **arguments: Any) -> PyTorchTrial:
    """Make a trial and, where it defines them, its model, optimizer and scheduler by `build_*` methods.

    Raises TrialError when it ends up without a model or, where it is to be trained, without an optimizer.
    """
    missing = sorted(getattr(trial_class, "__abstractmethods__", ()))
    if missing:
        raise TrialError(f"{trial_class.__name__} does not define {', '.join(missing)}; every PyTorchTrial must")
    return complete_trial(trial_class(context, **arguments), context)


def complete_trial(trial: PyTorchTrial, context: PyTorchTrialContext) -> PyTorchTrial:
    """Give a trial its context and the parts that its `build_*` methods make, if it has them and they are not made yet."""
    if not hasattr(trial, "context"):
        trial.context = context
    if not context.models and _defines(trial, "build_model"):
        _build_parts(trial, context)
    return trial


def check_trial(trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
    """Raise TrialError for a trial that cannot be trained."""
    name = type(trial).__name__
    if not context.models:
        raise TrialError(f"{name} wrapped no model; pass it through context.wrap_model(), or define build_model()")
    if not context.optimizers:
        raise TrialError(
            f"{name} wrapped no optimizer; pass it through context.wrap_optimizer(), or define build_optimizer()"
        )
    batch, full = overrides(trial, "evaluate_batch"), overrides(trial, "evaluate_full_dataset")
    if batch == full:
        both = "both evaluate_batch and" if batch else "neither evaluate_batch nor"
        raise TrialError(f"{name} defines {both} evaluate_full_dataset; define exactly one of them")


def overrides(trial: PyTorchTrial, method: str) -> bool:
    """Return whether a trial has a method of its own in place of PyTorchTrial's."""
    return getattr(type(trial), method) is not getattr(PyTorchTrial, method)


def training_step(trial: PyTorchTrial, context: PyTorchTrialContext) -> Callable[[Any, int, int], Any]:
    """Return `train_batch` in the form `(batch, epoch, batch_idx)`; the oldest API passes the model as well."""
    if _parameters(trial.train_batch) >= 4:
        step: Callable[..., Any] = trial.train_batch
        model = context.models[0]
        return lambda batch, epoch, index: step(batch, model, epoch, index)
    return trial.train_batch


def evaluation_step(trial: PyTorchTrial, context: PyTorchTrialContext) -> Callable[[Any, int], Any]:
    """Return `evaluate_batch` in the form `(batch, batch_idx)`, whichever its author wrote."""
    step: Callable[..., Any] = trial.evaluate_batch
    names = list(inspect.signature(step).parameters)
    if len(names) < 2:
        return lambda batch, index: step(batch)
    if names[1] == "model":
        return lambda batch, index: step(batch, context.models[0])
    return step


def _build_parts(trial: Any, context: PyTorchTrialContext) -> None:
    trial.model = context.wrap_model(trial.build_model())
    make = getattr(trial, "build_optimizer", None) or getattr(trial, "optimizer", None)
    if not callable(make):
        return
    trial.optimizer = context.wrap_optimizer(_with(make, trial.model))
    make = getattr(trial, "build_lr_scheduler", None) or getattr(trial, "create_lr_scheduler", None)
    scheduler = _with(make, trial.optimizer) if callable(make) else None
    if scheduler is None:
        return
    if not isinstance(scheduler, LRScheduler):
        scheduler = LRScheduler(scheduler, LRScheduler.StepMode.STEP_EVERY_EPOCH)
    trial.lr_scheduler = context.add_lr_scheduler(scheduler)


def _with(make: Callable[..., Any], argument: Any) -> Any:
    return make(argument) if _parameters(make) else make()


def _parameters(function: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds for p in inspect.signature(function).parameters.values())


def _defines(trial: PyTorchTrial, method: str) -> bool:
    return callable(getattr(trial, method, None))

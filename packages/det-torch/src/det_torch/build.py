"""Builds a trial and its parts, and adapts its methods to one signature each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from det_core import TrialError
from det_core.train.entrypoint import make_trial, misspelled, must_take

from .context import PyTorchTrialContext
from .lr import LRScheduler
from .trial import PyTorchTrial

_FORMS = {
    "train_batch": (
        ("batch", "epoch_idx", "batch_idx"),
        ("batch", "model", "epoch_idx", "batch_idx"),
    ),
    "evaluate_batch": (("batch",), ("batch", "batch_idx")),
    "evaluate_full_dataset": (("data_loader",), ("data_loader", "model")),
}
_EVALUATIONS = ("evaluate_batch", "evaluate_full_dataset")


def build_trial(
    trial_class: type[PyTorchTrial], context: PyTorchTrialContext, **arguments: Any
) -> PyTorchTrial:
    """Make a trial.

    If it defines `build_*` methods, make its model, optimizer and scheduler with them.
    """
    return complete_trial(make_trial(trial_class, PyTorchTrial, context, **arguments), context)


def complete_trial(trial: PyTorchTrial, context: PyTorchTrialContext) -> PyTorchTrial:
    """Set a trial's context and make the parts that are still missing with
    its `build_*` methods.
    """
    if not hasattr(trial, "context"):
        trial.context = context
    _build_parts(trial, context)
    return trial


def check_trial(trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
    """Raise TrialError for a trial that cannot be trained."""
    name = type(trial).__name__
    if not context.models:
        raise TrialError(
            f"{name} wrapped no model; pass it through context.wrap_model(), or define"
            " build_model()"
        )
    if not context.optimizers:
        raise TrialError(
            f"{name} wrapped no optimizer; pass it through context.wrap_optimizer(), or define"
            " build_optimizer()"
        )
    batch, full = (overrides(trial, method) for method in _EVALUATIONS)
    if batch == full:
        both = "both evaluate_batch and" if batch else "neither evaluate_batch nor"
        near = "" if batch else misspelled(type(trial), PyTorchTrial, _EVALUATIONS)
        raise TrialError(
            f"{name} defines {both} evaluate_full_dataset; define exactly one of them{near}"
        )
    for method, forms in _FORMS.items():
        must_take(getattr(trial, method), f"{name}.{method}", forms)


def build_loader(context: PyTorchTrialContext, build: Callable[[], Any], split: str) -> Any:
    """Return the data loader that the trial's method `build` and the plugins' hooks make."""
    loader = context.run.build.data_loader(context, build, split)
    if loader is None or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise TrialError(
            f"build_{split}_data_loader returned {type(loader).__name__}; return a data loader or"
            " an iterable of batches"
        )
    return loader


def overrides(trial: PyTorchTrial, method: str) -> bool:
    """Return whether a trial's class overrides a method of PyTorchTrial."""
    return getattr(type(trial), method) is not getattr(PyTorchTrial, method)


def training_step(
    trial: PyTorchTrial, context: PyTorchTrialContext
) -> Callable[[Any, int, int], Any]:
    """Return `train_batch` with the signature `(batch, epoch, batch_idx)`.

    The oldest API's `train_batch(batch, model, epoch_idx, batch_idx)` only returns a loss. For it,
    the returned function also calls backward and steps the optimizer.
    """
    return _oldest_step(trial, context) if _is_oldest(trial) else trial.train_batch


def evaluation_step(trial: PyTorchTrial, context: PyTorchTrialContext) -> Callable[[Any, int], Any]:
    """Return `evaluate_batch` with the signature `(batch, batch_idx)`, whichever of the accepted
    signatures it has.
    """
    step: Callable[..., Any] = trial.evaluate_batch
    names = _positional(step)
    if len(names) < 2:
        return lambda batch, index: step(batch)
    if names[1] == "model" or _is_oldest(trial):
        return lambda batch, index: step(batch, context.models[0])
    return step


def full_evaluation(trial: PyTorchTrial, context: PyTorchTrialContext) -> Callable[[Any], Any]:
    """Return `evaluate_full_dataset` with the signature `(data_loader)`.

    The oldest API passes the model too.
    """
    step: Callable[..., Any] = trial.evaluate_full_dataset
    if len(_positional(step)) < 2:
        return step
    return lambda data: step(data, context.models[0])


def _oldest_step(
    trial: PyTorchTrial, context: PyTorchTrialContext
) -> Callable[[Any, int, int], Any]:
    train: Callable[..., Any] = trial.train_batch
    model, optimizer, steps = context.models[0], context.optimizers[0], context.steps

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise TrialError(
            "train_batch(batch, model, epoch_idx, batch_idx) only returns its loss, which det"
            " follows; to call backward and step_optimizer yourself, define train_batch(batch,"
            " epoch_idx, batch_idx)"
        )

    context.backward = context.step_optimizer = refuse  # type: ignore[method-assign]

    def follow(batch: Any, epoch: int, index: int) -> Any:
        metrics = train(batch, model, epoch, index)
        loss = metrics.get("loss") if isinstance(metrics, dict) else metrics
        if not isinstance(loss, torch.Tensor):
            raise TrialError(
                f"train_batch returned {type(loss).__name__} as its loss; return a tensor, or a"
                " dict that holds one as 'loss'"
            )
        steps.backward(loss)
        steps.step_optimizer(optimizer)
        return metrics

    return follow


def _build_parts(trial: Any, context: PyTorchTrialContext) -> None:
    if not context.models and (build := _method(trial, "build_model")):
        trial.model = context.wrap_model(build())
    if not context.models:
        return
    if not context.optimizers and (build := _method(trial, "build_optimizer", "optimizer")):
        trial.optimizer = context.wrap_optimizer(_with(build, context.models[0]))
    if not context.optimizers or context.lr_schedulers:
        return
    if build := _method(trial, "build_lr_scheduler", "create_lr_scheduler"):
        _add_scheduler(trial, context, _with(build, context.optimizers[0]))


def _add_scheduler(trial: Any, context: PyTorchTrialContext, scheduler: Any) -> None:
    if scheduler is not None:
        if not isinstance(scheduler, LRScheduler):
            scheduler = LRScheduler(scheduler, LRScheduler.StepMode.STEP_EVERY_EPOCH)
        trial.lr_scheduler = context.add_lr_scheduler(scheduler)


def _method(trial: Any, *names: str) -> Callable[..., Any] | None:
    """Return the trial's first method with one of the names.

    Attributes that are not methods do not count.
    """
    return next(
        (getattr(trial, name) for name in names if inspect.isroutine(getattr(trial, name, None))),
        None,
    )


def _with(make: Callable[..., Any], argument: Any) -> Any:
    return make(argument) if _positional(make) else make()


def _is_oldest(trial: PyTorchTrial) -> bool:
    return len(_positional(trial.train_batch, required=True)) >= 4


def _positional(function: Callable[..., Any], *, required: bool = False) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [
        p.name
        for p in parameters
        if p.kind in kinds and not (required and p.default is not p.empty)
    ]

"""Callbacks: what a trial may do at the turns of its training."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from det_core import TrialError


class PyTorchCallback:
    """Override what you need; return the callbacks by name from `PyTorchTrial.build_callbacks`.

    Saving hooks and `state_dict` are called on the chief, all others on every rank, in the order of the dict. What
    `state_dict` returns must be made of tensors, numbers, text, lists, tuples and dicts.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Before data loaders are built; `first_batch_idx` is the number of batches that the checkpoint had trained."""

    def on_trial_shutdown(self) -> None:
        """At the very end, after an error too."""

    def on_training_start(self) -> None:
        """Before the first batch of this run and before an initial validation."""

    def on_training_end(self) -> None:
        """Behind the last batch of a trial that is over for good, before its last validation and checkpoint.

        Here weights may be replaced, alike on every rank: by averaged ones, say. A run that is paused or interrupted saves what
        training left, and does not come here.
        """

    def on_before_optimizer_step(self, parameters: Iterator[Any]) -> None:
        """Before an optimizer is stepped, with its parameters, whose gradients are complete and unscaled."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Before the first batch of an epoch."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """After the last batch of an epoch."""

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        """When training metrics are reported: their means, and the numbers of each batch."""

    def on_validation_start(self) -> None:
        """Before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch of a validation by `evaluate_batch`."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """After the last batch of a validation by `evaluate_batch`, with what it returned for each."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """After a validation, with its metrics."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Before state is restored from `checkpoint`, which may be changed in place."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Before `checkpoint` is written; it may be changed in place."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Older name of `on_checkpoint_write_end`."""

    def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
        """When the files of a checkpoint are written, before they are published; more may be added."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """When a checkpoint is published."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class ClipGradsL2Norm(PyTorchCallback):
    """Clips the norm of all gradients before a step of the optimizer."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: Iterator[Any]) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, self._clip_value)


class ClipGradsL2Value(PyTorchCallback):
    """Clips each gradient before a step of the optimizer."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: Iterator[Any]) -> None:
        torch.nn.utils.clip_grad_value_(parameters, self._clip_value)


class Callbacks:
    """A trial's callbacks, called in order; a hook that none of them overrides costs nothing."""

    def __init__(self, callbacks: Mapping[str, PyTorchCallback]) -> None:
        _check(callbacks)
        self.named = dict(callbacks)
        self._hooks: dict[str, list[Callable[..., Any]]] = {}
        self.epochs = bool(self.overriding("on_training_epoch_start") or self.overriding("on_training_epoch_end"))

    def overriding(self, hook: str) -> list[Callable[..., Any]]:
        """Return the callbacks' implementations of a hook, those that do nothing left out."""
        if hook not in self._hooks:
            base = getattr(PyTorchCallback, hook, None)
            self._hooks[hook] = [
                _takes(getattr(callback, hook))
                for callback in self.named.values()
                if getattr(type(callback), hook, None) is not base
            ]
        return self._hooks[hook]

    def __call__(self, hook: str, *arguments: Any) -> None:
        for implementation in self.overriding(hook):
            implementation(*arguments)

    def shut_down(self) -> None:
        """Call `on_trial_shutdown` of every callback, whichever of them fails; the first failure is raised."""
        failures: list[Exception] = []
        for implementation in self.overriding("on_trial_shutdown"):
            try:
                implementation()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def state(self) -> dict[str, Any]:
        """Return the state of each callback by its name."""
        return {name: callback.state_dict() for name, callback in self.named.items()}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Give each callback its state; warn where one that wants its state has none."""
        for name, callback in self.named.items():
            if name in states:
                callback.load_state_dict(states[name])
            elif type(callback).load_state_dict is not PyTorchCallback.load_state_dict:
                warnings.warn(f"the checkpoint holds no state of the callback {name!r}; it starts afresh", stacklevel=2)


def _check(callbacks: Any) -> None:
    if not isinstance(callbacks, Mapping):
        raise TrialError(f"build_callbacks returned {type(callbacks).__name__}; return a dict of callbacks by name")
    for name, callback in callbacks.items():
        if not isinstance(callback, PyTorchCallback):
            raise TrialError(
                f"build_callbacks returned {callback!r} as {name!r}; derive it from det_torch.PyTorchCallback"
            )
        if type(callback).on_checkpoint_end is not PyTorchCallback.on_checkpoint_end:
            warnings.warn(
                f"the callback {name!r} overrides on_checkpoint_end; override on_checkpoint_write_end, its newer name",
                FutureWarning,
                stacklevel=2,
            )


def _takes(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that may be called with its argument, though its author's version of the API had none."""
    if hook.__name__ == "on_training_epoch_start" and not inspect.signature(hook).parameters:
        return lambda epoch_idx: hook()
    return hook

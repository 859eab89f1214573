"""Callbacks, which a trial defines to act at certain points of its training."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from det_core import TrialError


class PyTorchCallback:
    """Override the hooks that you need.

    `PyTorchTrial.build_callbacks` returns the callbacks by name.

    Saving hooks and `state_dict` are called on the chief. All others are called on every rank, in
    the order of the dict.

    What `state_dict` returns may hold tensors, numbers, text, NumPy's numbers and arrays, lists,
    tuples and dicts.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called before data loaders are built.

        `first_batch_idx` is the number of batches that the checkpoint had trained.
        """

    def on_trial_shutdown(self) -> None:
        """Called at the very end, also after an error."""

    def on_training_start(self) -> None:
        """Called before the first batch of this run and before an initial validation."""

    def on_training_end(self) -> None:
        """Called after the last batch of a completed trial, before its last validation and
        checkpoint.

        This hook may replace the weights, for example by averaged ones. It must replace them alike
        on every rank. A run that is paused or interrupted saves its training state and does not
        call this hook.
        """

    def on_before_optimizer_step(self, parameters: Iterator[Any]) -> None:
        """Called before an optimizer steps, with its parameters.

        Their gradients are complete and unscaled.
        """

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before the first batch of an epoch is read.

        A run that resumes within an epoch does not call it for that epoch.

        Changes that it makes to the training data set reach the loader's worker processes. As in
        PyTorch, these are started again for each epoch, unless the loader has `persistent_workers`.
        """

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Called after the last batch of an epoch."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Called when training metrics are reported, with their means and with the numbers of each
        batch.
        """

    def on_validation_start(self) -> None:
        """Called before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch of a validation by `evaluate_batch`."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Called after the last batch of a validation by `evaluate_batch`.

        `outputs` holds what it returned for each batch.
        """

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Called after a validation, with its metrics."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Called before state is restored from `checkpoint`.

        The hook may change `checkpoint` in place.
        """

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Called before `checkpoint` is written. The hook may change `checkpoint` in place."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Older name of `on_checkpoint_write_end`."""

    def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
        """Called when the files of a checkpoint are written and not yet published.

        The hook may add files. What it raises ends the run once the checkpoint is published.
        """

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Called when a checkpoint is published."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint must hold."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class ClipGradsL2Norm(PyTorchCallback):
    """Clips the norm of all gradients before an optimizer steps."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: Iterator[Any]) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, self._clip_value)


class ClipGradsL2Value(PyTorchCallback):
    """Clips each gradient before an optimizer steps."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: Iterator[Any]) -> None:
        torch.nn.utils.clip_grad_value_(parameters, self._clip_value)


class Callbacks:
    """Calls a trial's callbacks in order. A hook that none of them overrides costs nothing."""

    def __init__(self, callbacks: Mapping[str, PyTorchCallback]) -> None:
        _check(callbacks)
        self.named = dict(callbacks)
        self._hooks: dict[str, list[Callable[..., Any]]] = {}

    def overriding(self, hook: str) -> list[Callable[..., Any]]:
        """Return the hook's implementations of the callbacks that override it."""
        if hook not in self._hooks:
            base = getattr(PyTorchCallback, hook, None)
            self._hooks[hook] = [
                _adapt_hook(getattr(callback, hook))
                for callback in self.named.values()
                if getattr(type(callback), hook, None) is not base
            ]
        return self._hooks[hook]

    def __call__(self, hook: str, *arguments: Any) -> None:
        for implementation in self.overriding(hook):
            implementation(*arguments)

    def shut_down(self) -> None:
        """Call `on_trial_shutdown` of every callback, even if one of them fails.

        Raises the first failure.
        """
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
        """Give each callback its state.

        Warns of a callback that overrides `load_state_dict` and has no state in the checkpoint.
        """
        for name, callback in self.named.items():
            if name in states:
                callback.load_state_dict(states[name])
            elif type(callback).load_state_dict is not PyTorchCallback.load_state_dict:
                warnings.warn(
                    f"the checkpoint holds no state of the callback {name!r}; it starts afresh",
                    stacklevel=2,
                )


def _check(callbacks: Any) -> None:
    if not isinstance(callbacks, Mapping):
        raise TrialError(
            f"build_callbacks returned {type(callbacks).__name__}; return a dict of callbacks by"
            " name"
        )
    for name, callback in callbacks.items():
        if not isinstance(callback, PyTorchCallback):
            raise TrialError(
                f"build_callbacks returned {callback!r} as {name!r}; derive it from"
                " det_torch.PyTorchCallback"
            )
        if type(callback).on_checkpoint_end is not PyTorchCallback.on_checkpoint_end:
            warnings.warn(
                f"the callback {name!r} overrides on_checkpoint_end; override"
                " on_checkpoint_write_end, its newer name",
                FutureWarning,
                stacklevel=2,
            )


def _adapt_hook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that accepts `epoch_idx`.

    In an older version of the API, `on_training_epoch_start` had no argument.
    """
    if hook.__name__ == "on_training_epoch_start" and not inspect.signature(hook).parameters:
        return lambda epoch_idx: hook()
    return hook

"""Mixed precision: autocast around the trial's steps, and the gradient scaler that fp16 needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from det_core import TrialError

T = TypeVar("T")
_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Precision:
    """Mixed precision as `optimizations.precision` sets it, or the trial by `use_amp()` or its own
    scaler. Models are unchanged.

    - `auto_scaler`: the scaler that det drives. None in fp32 and bf16, and if the trial drives its
      own.
    - `scaler`: either scaler. A checkpoint holds its state.
    - `type`: the type in which autocast computes. None in fp32.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device
        self.type: torch.dtype | None = None
        self.scaler: Any = None
        self.auto_scaler: Any = None
        # The optimizers that auto_scaler has stepped since its last update.
        self._stepped: set[torch.optim.Optimizer] = set()
        if name != "fp32":
            self.use(name)

    def use(self, name: str) -> None:
        """Enable mixed precision."""
        self.type = _TYPES[name]
        if name == "fp16":
            self.auto_scaler = self.wrap_scaler(torch.amp.GradScaler(self._device.type))

    def wrap_scaler(self, scaler: Any) -> Any:
        """Register a scaler. Raises TrialError if there is one already."""
        if self.scaler is not None:
            raise TrialError(
                "there is a gradient scaler already; use one of wrap_scaler(),"
                " experimental.use_amp() and optimizations.precision: fp16, once"
            )
        self.scaler = scaler
        return scaler

    def around(self, step: Callable[..., T]) -> Callable[..., T]:
        """Return a trial's step that runs under autocast if half precision is enabled."""
        if self.type is None:
            return step

        def mixed(*arguments: Any) -> T:
            with torch.autocast(self._device.type, dtype=self.type):
                return step(*arguments)

        return mixed

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context without autocast.

        Backward passes and optimizers compute in the types of their tensors.

        It is not entered if `type` is None, as it would change nothing and be entered twice for
        each batch.
        """
        return torch.autocast(self._device.type, enabled=False)

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Clear autocast's cached copies of weights after each step, so that later code in the
        batch sees the new weights.
        """
        optimizer.register_step_post_hook(self._forget_copies)

    def _forget_copies(self, *arguments: Any) -> None:
        if self.type is not None:
            torch.clear_autocast_cache()

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that `auto_scaler` steps an optimizer in this batch.

        Raises TrialError if it does so a second time. An update of the scale between two steps
        would be wrong for gradients of other optimizers that are scaled already.
        """
        if optimizer in self._stepped:
            raise TrialError(
                f"step_optimizer() was called twice in one batch for {type(optimizer).__name__},"
                " but in fp16 the scale of gradients is updated once for each batch; step each"
                " optimizer once in a batch, use optimizations.precision: bf16, or give"
                " wrap_scaler() a scaler of your own and call its update() after each step"
            )
        self._stepped.add(optimizer)

    def after_batch(self) -> None:
        """Update the scale once for each batch on which an optimizer was stepped."""
        if self._stepped:
            self.auto_scaler.update()
            self._stepped.clear()

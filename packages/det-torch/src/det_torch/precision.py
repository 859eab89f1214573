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
    """What `optimizations.precision` asks for, or the trial by `use_amp()` or a scaler of its own. Models stay as they are.

    `auto_scaler` is the one that det drives, None in fp32 and bf16 and where the trial drives its own; `scaler` is any, whose
    state is saved. `type` is what autocast computes in, None in fp32.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device
        self.type: torch.dtype | None = None
        self.scaler: Any = None
        self.auto_scaler: Any = None
        self.stepped = False  # whether auto_scaler has stepped an optimizer since its last update
        if name != "fp32":
            self.use(name)

    def use(self, name: str) -> None:
        """Turn mixed precision on."""
        self.type = _TYPES[name]
        if name == "fp16":
            self.auto_scaler = self.wrap_scaler(torch.amp.GradScaler(self._device.type))

    def wrap_scaler(self, scaler: Any) -> Any:
        """Take in a scaler, once."""
        if self.scaler is not None:
            raise TrialError(
                "there is a gradient scaler already; use one of wrap_scaler(), experimental.use_amp() and "
                "optimizations.precision: fp16, once"
            )
        self.scaler = scaler
        return scaler

    def around(self, step: Callable[..., T]) -> Callable[..., T]:
        """Return a step of the trial's that runs under autocast, where half precision is on."""
        if self.type is None:
            return step

        def mixed(*arguments: Any) -> T:
            with torch.autocast(self._device.type, dtype=self.type):
                return step(*arguments)

        return mixed

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context without autocast: passes backward, and optimizers, compute in the types that they find.

        Where `type` is None it is not entered: that would be done twice for each batch, and change nothing.
        """
        return torch.autocast(self._device.type, enabled=False)

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Let what follows a step in the same batch see the new weights: autocast keeps copies of the old ones."""
        optimizer.register_step_post_hook(self._forget_copies)

    def _forget_copies(self, *arguments: Any) -> None:
        if self.type is not None:
            torch.clear_autocast_cache()

    def after_batch(self) -> None:
        """Adapt the scale, once for each batch on which an optimizer was stepped."""
        if self.stepped:
            self.auto_scaler.update()
            self.stepped = False

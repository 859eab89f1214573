"""Mixed precision: autocast around the models, and the gradient scaler that fp16 needs."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import nn

from det_core import TrialError

_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Precision:
    """What `optimizations.precision` asks for, or the trial by `use_amp()` or a scaler of its own.

    `auto_scaler` is the one that det drives, None in fp32 and bf16 and where the trial drives its own; `scaler` is any, whose
    state is saved.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device
        self._type: torch.dtype | None = None
        self.scaler: Any = None
        self.auto_scaler: Any = None
        if name != "fp32":
            self.use(name)

    def use(self, name: str) -> None:
        """Turn mixed precision on."""
        self._type = _TYPES[name]
        if name == "fp16":
            self.auto_scaler = self.wrap_scaler(torch.amp.GradScaler(self._device.type))

    def wrap_scaler(self, scaler: Any) -> Any:
        """Take in a scaler, once."""
        if self.scaler is not None:
            raise TrialError("there is a gradient scaler already; call one of wrap_scaler() and use_amp(), once")
        self.scaler = scaler
        return scaler

    def apply(self, model: nn.Module) -> None:
        """Let a model's forward pass run under autocast, and give its outputs back in fp32."""
        if self._type is None:
            return
        forward, device, kind = model.forward, self._device.type, self._type

        @functools.wraps(forward)
        def mixed(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, dtype=kind):
                output = forward(*args, **kwargs)
            return _float(output)

        model.forward = mixed  # type: ignore[method-assign]

    def after_batch(self) -> None:
        """Adapt the scale, once for each batch on which optimizers step."""
        if self.auto_scaler is not None:
            self.auto_scaler.update()


def _float(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    if isinstance(output, dict):
        return {key: _float(value) for key, value in output.items()}
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_float(value) for value in output))
    if isinstance(output, (list, tuple)):
        return type(output)(_float(value) for value in output)
    if output is not None and not isinstance(output, (int, float, str)):
        warnings.warn(f"a model returned {type(output).__name__}, which stays in half precision", stacklevel=3)
    return output

"""Mixed precision: autocast around the models, and the gradient scaler that fp16 needs."""

from __future__ import annotations

import copy
import dataclasses
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
        self.stepped = False  # whether auto_scaler has stepped an optimizer since its last update
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
            raise TrialError(
                "there is a gradient scaler already; use one of wrap_scaler(), experimental.use_amp() and "
                "optimizations.precision: fp16, once"
            )
        self.scaler = scaler
        return scaler

    def apply(self, model: nn.Module) -> None:
        """Let a model's forward pass run under autocast, and give its outputs back in fp32."""
        if self._type is not None:
            model.__class__ = _mixed(type(model), self._device.type, self._type)

    def after_batch(self) -> None:
        """Adapt the scale, once for each batch on which an optimizer was stepped."""
        if self.stepped:
            self.auto_scaler.update()
            self.stepped = False


def _mixed(kind: type[nn.Module], device: str, dtype: torch.dtype) -> type[nn.Module]:
    """Return a subclass whose forward pass runs under autocast; so a copy of a model is one of its own."""

    class Mixed(kind):  # type: ignore[valid-type, misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, dtype=dtype):
                output = super().forward(*args, **kwargs)
            return _float(output)

    Mixed.__name__, Mixed.__qualname__, Mixed.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Mixed


def _float(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    if isinstance(output, dict):
        changed = copy.copy(output)  # of its own type, such as an output that also has attributes
        for key, value in output.items():
            changed[key] = _float(value)
        return changed
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_float(value) for value in output))
    if isinstance(output, (list, tuple)):
        return type(output)(_float(value) for value in output)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        fields = [field.name for field in dataclasses.fields(output) if field.init]
        return dataclasses.replace(output, **{name: _float(getattr(output, name)) for name in fields})
    if output is not None and not isinstance(output, (int, float, str)):
        warnings.warn(f"a model returned {type(output).__name__}, which stays in half precision", stacklevel=3)
    return output

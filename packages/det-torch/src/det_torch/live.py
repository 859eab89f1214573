"""Checksums of a trial's state by name.

They show what training changes and what a restored trial lacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from .context import PyTorchTrialContext
from .data import DataLoader
from .sharding import is_sharded

_DEEPEST = 8
_LEFT_OUT = (
    PyTorchTrialContext,
    DataLoader,
    torch.utils.data.DataLoader,
    torch.utils.data.Dataset,
    torch.utils.data.Sampler,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    type,
)


def fingerprint(models: Iterable[nn.Module]) -> str:
    """Return a checksum of the bits of all parameters that are not sharded."""
    checksum = hashlib.blake2b()
    for model in models:
        for parameter in model.parameters():
            if not is_sharded(parameter):
                checksum.update(tensor_bytes(parameter))
    return checksum.hexdigest()


def live_state(
    trial: Any, models: Iterable[nn.Module], without: Iterable[Any] = ()
) -> dict[str, str]:
    """Return checksums of the tensors and arrays in a trial's attributes and models, and the
    trial's own numbers.

    Leaves out the objects of `without`, data, optimizers and schedulers.
    """
    found: dict[str, str] = {}
    seen = {id(each) for each in without}
    numbers = {
        name: value for name, value in vars(trial).items() if type(value) in (int, float, bool)
    }
    found.update({f"trial.{name}": repr(value) for name, value in numbers.items()})
    for name, value in vars(trial).items():
        _walk(f"trial.{name}", value, found, seen, _DEEPEST)
    for index, model in enumerate(models):
        _walk(f"model {index}", model, found, seen, _DEEPEST)
    return found


def _walk(name: str, value: Any, found: dict[str, str], seen: set[int], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        if not is_sharded(value):
            found[name] = hashlib.blake2b(tensor_bytes(value)).hexdigest()
        return
    if isinstance(value, np.ndarray):
        if value.dtype != object:
            found[name] = hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest()
        return
    if not depth or id(value) in seen or isinstance(value, _LEFT_OUT):
        return
    if isinstance(value, Mapping):
        inner = [(f"{name}[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [(f"{name}[{index}]", each) for index, each in enumerate(value)]
    elif isinstance(value, nn.Module):
        inner = [(f"{name}.{key}", each) for key, each in value.named_parameters(recurse=False)]
        inner += [(f"{name}.{key}", each) for key, each in value.named_buffers(recurse=False)]
        inner += [(f"{name}.{key}", each) for key, each in value.named_children()]
        inner += [
            (f"{name}.{key}", each) for key, each in vars(value).items() if not key.startswith("_")
        ]
    elif hasattr(value, "__dict__") and not callable(value):
        inner = [(f"{name}.{key}", each) for key, each in vars(value).items()]
    else:
        return
    seen.add(id(value))
    for each in inner:
        _walk(*each, found, seen, depth - 1)


def tensor_bytes(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return repr(tensor).encode()
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

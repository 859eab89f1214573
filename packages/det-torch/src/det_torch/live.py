"""Checksums of a trial's state by name.

They show what training changes and what a restored trial lacks.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from det_core.support.imports import is_library_module

from .context import PyTorchTrialContext
from .data import DataLoader, is_generator, read_generators
from .sharding import is_sharded

_DEEPEST = 8
# Objects in a container of more elements are records, and not state.
_WIDEST = 1000
_LEFT_OUT = (
    PyTorchTrialContext,
    DataLoader,
    torch.utils.data.DataLoader,
    torch.utils.data.Dataset,
    torch.utils.data.Sampler,
    type,
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    ModuleType,
)
_WRAPPED_BY = (
    (torch.optim.Optimizer, "wrap_optimizer"),
    (torch.optim.lr_scheduler.LRScheduler, "wrap_lr_scheduler"),
    (torch.amp.GradScaler, "wrap_scaler"),
)
_PLAIN = (bool, int, float, complex, str, bytes, np.generic, enum.Enum)
_CLOCKS = (time.time, time.perf_counter)
_RECENT_SECONDS = 60
# Classes of the user's code may be derived from these.
_BASES = {
    *("abc", "argparse", "builtins", "collections", "dataclasses", "enum", "types", "typing"),
    *("det_core", "det_torch", "torch"),
}


def fingerprint(models: Iterable[nn.Module]) -> str:
    """Return a checksum of the bits of all parameters that are not sharded."""
    checksum = hashlib.blake2b()
    for model in models:
        for parameter in model.parameters():
            if not is_sharded(parameter):
                checksum.update(tensor_bytes(parameter))
    return checksum.hexdigest()


def live_state(
    trial: Any,
    models: Iterable[nn.Module],
    callbacks: Mapping[str, Any],
    without: Iterable[Any] = (),
) -> dict[str, str]:
    """Return checksums of what a trial, its models and its callbacks hold.

    These are tensors, arrays, random generators, optimizers, schedulers and scalers, also in
    containers and objects. Numbers and text are those of the user's own classes.

    Leaves out the objects of `without`, and data.
    """
    walk = _Walk([trial, *callbacks.values(), *without])
    walk.add_attributes("trial", trial, True)
    for index, model in enumerate(models):
        walk.add(f"model {index}", model)
    for name, callback in callbacks.items():
        walk.add_attributes(f"callback {name!r}", callback, True)
    return walk.found


def callback_state(callbacks: Mapping[str, Any], without: Iterable[Any]) -> dict[str, str]:
    """Return the part of `live_state` that callbacks hold."""
    walk = _Walk([*callbacks.values(), *without])
    for name, callback in callbacks.items():
        walk.add_attributes(f"callback {name!r}", callback, True)
    return walk.found


class _Walk:
    """Collects checksums by name. An empty one stands for None, and for a container of no data."""

    def __init__(self, seen: Iterable[Any]) -> None:
        self.found: dict[str, str] = {}
        self._seen = {id(each) for each in seen}

    def add_attributes(self, name: str, value: Any, own: bool, depth: int = _DEEPEST) -> None:
        for key, each in vars(value).items():
            self.add(f"{name}.{key}", each, own, depth - 1)

    def add(self, name: str, value: Any, own: bool = True, depth: int = _DEEPEST) -> None:
        """Add a value by its name. `own` says whether its numbers and text are added."""
        # A value that cannot be looked through must not end a training.
        with suppress(Exception):
            self._add(name, value, own, depth)

    def _add(self, name: str, value: Any, own: bool, depth: int) -> None:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            if checksum := _checksum(value):
                self.found[name] = checksum
            return
        if isinstance(value, float) and _is_recent_time(value):
            return
        if value is None or isinstance(value, (set, frozenset, *_PLAIN)):
            if own:
                self.found[name] = "" if value is None else _text(value) or ""
            return
        if not depth or id(value) in self._seen or isinstance(value, _LEFT_OUT):
            return
        self._seen.add(id(value))
        wrap = next((by for kind, by in _WRAPPED_BY if isinstance(value, kind)), None)
        if wrap is not None:
            self.found[f"{name} (give it to context.{wrap})"] = _hashed(_state(value))
        elif is_generator(value):
            self.found[name] = _hashed(_state(read_generators({"": value})))
        elif isinstance(value, (Mapping, list, tuple, deque)):
            self._add_items(name, value, own, depth)
        elif isinstance(value, nn.Module):
            for key, each in _module_attributes(value):
                self.add(f"{name}.{key}", each, _is_own(type(value)), depth - 1)
        elif hasattr(value, "__dict__"):
            self.add_attributes(name, value, _is_own(type(value)), depth)

    def _add_items(self, name: str, value: Any, own: bool, depth: int) -> None:
        """Add the numbers and text of a container, its other data, and the objects in it."""
        plain, data = [], []
        for key, each in _items(value):
            text = _text(each)
            if text is not None:
                plain.append((key, text))
                continue
            is_data = _is_data(each)
            data.append((key, _state(each) if is_data else type(each).__name__))
            if not (own and is_data) and len(value) <= _WIDEST:
                self.add(f"{name}[{key}]", each, own, depth - 1)
        if own:
            self.found[name] = _hashed(repr(plain))
            self.found[f"{name}[]"] = _hashed(repr(data)) if data else ""


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield from ((str(index), each) for index, each in enumerate(value))
        return
    # Other keys have another text in each process.
    named = {
        repr(key) if isinstance(key, _PLAIN) else str(index): each
        for index, (key, each) in enumerate(value.items())
    }
    # A restore may change the order.
    yield from sorted(named.items(), key=lambda item: item[0])


def _module_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Return what a module holds, without the training mode and torch's own attributes."""
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)
    yield from module.named_children()
    torchs, own = vars(nn.Module()), _is_own(type(module))
    for name, value in vars(module).items():
        if name not in torchs and (own or not name.startswith("_")):
            yield name, value


def _is_own(kind: type) -> bool:
    """Return whether the user's code defines a class, and derives it from no library but torch.

    Numbers of other objects are those of loggers, caches or progress bars in most cases.
    """
    if kind.__module__.partition(".")[0] == "torch":
        return False
    modules = {each.__module__ for each in kind.__mro__}
    return not any(
        name.partition(".")[0] not in _BASES and is_library_module(name) for name in modules
    )


def _is_recent_time(value: float) -> bool:
    return any(0 <= clock() - value < _RECENT_SECONDS for clock in _CLOCKS)


def _text(value: Any, depth: int = _DEEPEST) -> str | None:
    """Return the text of numbers, text, and containers of these. None for other values."""
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if not depth:
        return None
    if isinstance(value, (set, frozenset)):
        texts = [_text(each, depth - 1) for each in value]
        return None if None in texts else _hashed(repr(sorted(map(str, texts))))
    if isinstance(value, (Mapping, list, tuple, deque)):
        inner = [(key, _text(each, depth - 1)) for key, each in _items(value)]
        return None if any(text is None for _, text in inner) else _hashed(repr(inner))
    return None


def _is_data(value: Any, depth: int = _DEEPEST) -> bool:
    if isinstance(value, (Mapping, list, tuple, deque)):
        return depth > 0 and all(_is_data(each, depth - 1) for _, each in _items(value))
    return isinstance(value, (torch.Tensor, np.ndarray)) or _text(value) is not None


def _state(value: Any) -> str:
    """Return the text of data in containers, optimizers, schedulers and scalers.

    That of another object is its type.
    """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return _checksum(value)
    if isinstance(value, torch.optim.Optimizer):
        groups = [{**group, "params": len(group["params"])} for group in value.param_groups]
        parameters = [each for group in value.param_groups for each in group["params"]]
        return _state([groups, [value.state.get(each, {}) for each in parameters]])
    if isinstance(value, (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)):
        return _state(value.state_dict())
    if (text := _text(value)) is not None:
        return text
    if isinstance(value, (Mapping, list, tuple, deque)):
        return repr([(key, _state(each)) for key, each in _items(value)])
    return type(value).__name__


def _checksum(value: torch.Tensor | np.ndarray[Any, Any]) -> str:
    if isinstance(value, torch.Tensor):
        return "" if is_sharded(value) else hashlib.blake2b(tensor_bytes(value)).hexdigest()
    if value.dtype == object:
        return ""
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest()


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace")).hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> Any:
    # The first batch gives it a shape and values.
    if is_lazy(tensor):
        return b""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return repr(tensor).encode()
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data

"""Finds the random generators that a dataset keeps for itself, and reads and sets their states."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

# A dataset may hold its records in containers and objects. They are not searched.
_WIDEST, _MOST = 100, 10_000


def find_generators(loader: Any) -> dict[str, Any]:
    """Return the generators in the attributes of a loader's dataset and collate function.

    They are named by their path. The global generators are left out.
    """
    seen = {id(each) for each in _global()}
    todo = deque([("dataset", loader.dataset), ("collate_fn", loader.collate_fn)])
    found: dict[str, Any] = {}
    while todo and len(seen) < _MOST:
        path, part = todo.popleft()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if is_generator(part):
            found[path] = part
        else:
            todo += [(f"{path}{name}", child) for name, child in _children(part)]
    return found


def read_generators(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of generators by name, as plain data and arrays."""
    return {name: _read(generator) for name, generator in generators.items()}


def write_generators(generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Set the states that `read_generators` returned. Generators without a state are unchanged."""
    for name in generators.keys() & states.keys():
        _write(generators[name], states[name])


def _global() -> list[Any]:
    numpy = sys.modules.get("numpy")
    # Has no public name. It is in the attributes of objects that were given `numpy.random`.
    own = [numpy.random.mtrand._rand] if numpy is not None else []
    # The module's functions are methods of this object.
    return [*own, random.random.__self__, torch.default_generator]  # type: ignore[attr-defined]


def is_generator(part: Any) -> bool:
    """Return whether an object is a random generator of Python, NumPy or PyTorch."""
    numpy = sys.modules.get("numpy")
    kinds = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(part, (random.Random, torch.Generator, *kinds))


def _children(part: Any) -> list[tuple[str, Any]]:
    if isinstance(part, (Mapping, list, tuple)):
        if len(part) > _WIDEST:
            return []
        items = part.items() if isinstance(part, Mapping) else enumerate(part)
        return [(f"[{key!r}]", child) for key, child in items]
    if isinstance(part, partial):
        return [(f".{name}", getattr(part, name)) for name in ("func", "args", "keywords")]
    if isinstance(part, MethodType):
        return [(".__self__", part.__self__)]
    if isinstance(part, (type, ModuleType, FunctionType, torch.Tensor)):
        return []
    return [(f".{name}", child) for name, child in getattr(part, "__dict__", {}).items()]


def _read(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    bits = getattr(generator, "bit_generator", None)
    return generator.get_state(legacy=False) if bits is None else bits.state


def _write(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        version, internal, gauss = state
        generator.setstate((version, tuple(internal), gauss))
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)

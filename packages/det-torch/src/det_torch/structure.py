"""The names and shapes of a model's parameters and buffers.

They show that training has changed a model in a way that a restarted run would not: a layer that a
callback adds, adapters that are put in, a head that is replaced by a larger one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from det_core import TrialError

Structure = dict[str, torch.Size | None]
"""Shapes by name. None stands for a buffer that the model has yet to make."""

_UNKNOWN = torch.Size([-1])
# Modules of torch whose own code for loading neither adds parameters nor changes shapes.
_STRICT = ("torch.nn.", "torch.distributed.", "torch._dynamo.")
# How many names a message lists.
_NAMED = 3


def structure(model: nn.Module) -> Structure:
    """Return the shapes of a model's parameters and persistent buffers by their names."""
    found: Structure = {}
    for module, prefix in _modules(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found[prefix + name] = _shape(parameter)
        for name, buffer in _saved_buffers(module):
            found[prefix + name] = None if buffer is None else _shape(buffer)
    return found


def check_structure(
    model: nn.Module, built: Structure, saved: Mapping[str, Any], hook: str
) -> None:
    """Raise TrialError if `saved`, the state of a model, would not fit the model as it was built.

    `hook` is the hook in which a restarted run may change the model before it loads the state.
    Parts of the model that load their state by code of their own are left out.
    """
    now = structure(model)
    found: dict[str, list[str]] = {}
    for name in sorted(built.keys() | now.keys()) if now != built else ():
        change = _change(name, built, now, saved)
        if change and not _loads_itself(model, name):
            found.setdefault(change, []).append(name)
    if found:
        kind = type(getattr(model, "_orig_mod", model)).__name__
        changes = " and ".join(f"{change} {_listed(names)}" for change, names in found.items())
        raise TrialError(
            f"since the model {kind} was built, it {changes}, so that a restarted run could not"
            " load this checkpoint; make all layers, parameters and buffers in __init__ in their"
            " final shapes, with requires_grad off until they train, or change the model again in"
            f" {hook}"
        )


def _change(name: str, built: Structure, now: Structure, saved: Mapping[str, Any]) -> str | None:
    before, after = built.get(name), now.get(name)
    if before is None:
        return "has gained" if name not in built and name in saved else None
    if after is None:
        return "has lost" if name not in saved else None
    same = before == after or _UNKNOWN in (before, after)
    fits = name not in saved or _shape(saved[name]) == before
    return None if same or fits else "has another shape of"


def unsaved(model: nn.Module, built: Structure, saved: Mapping[str, Any]) -> str:
    """Return the names that the model has gained and `saved` does not hold, or nothing."""
    return _listed(sorted(structure(model).keys() - built.keys() - saved.keys()))


def make_buffers(model: nn.Module, state: Mapping[str, Any], prefix: str = "") -> None:
    """Make the buffers that are None in a model and have a value in the state to load."""
    held = next((each for each in (*model.parameters(), *model.buffers())), None)
    for module, place in _modules(model):
        for name, buffer in _saved_buffers(module):
            value = state.get(prefix + place + name)
            if buffer is None and isinstance(value, torch.Tensor):
                device = value.device if held is None else held.device
                setattr(module, name, torch.empty_like(value, device=device))


def _modules(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for name, module in model.named_modules(remove_duplicate=False):
        yield module, f"{name}." if name else ""


def saved_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's persistent buffers by their names."""
    return {
        place + name: buffer
        for module, place in _modules(model)
        for name, buffer in _saved_buffers(module)
        if buffer is not None
    }


def _saved_buffers(module: nn.Module) -> list[tuple[str, Any]]:
    passing = getattr(module, "_non_persistent_buffers_set", ())
    return [(name, each) for name, each in module._buffers.items() if name not in passing]


def _shape(value: Any) -> torch.Size:
    known = isinstance(value, torch.Tensor) and not is_lazy(value)
    return value.shape if known else _UNKNOWN


def _loads_itself(model: nn.Module, name: str) -> bool:
    """Return whether the module of a parameter, or one around it, has code of its own that loads
    states.
    """
    module: Any = model
    for part in name.split("."):
        if not isinstance(module, nn.Module):
            return False
        hooks = [getattr(each, "hook", each) for each in module._load_state_dict_pre_hooks.values()]
        functions = [type(module)._load_from_state_dict, type(module).load_state_dict, *hooks]
        if not all(map(_is_strict, functions)):
            return True
        module = module._modules.get(part)
    return False


def _is_strict(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    place = getattr(function, "__module__", None) or type(function).__module__
    return str(place).startswith(_STRICT)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown

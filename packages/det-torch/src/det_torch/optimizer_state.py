"""Keeps the types of the tensors in an optimizer's state.

torch's `Optimizer.load_state_dict` gives them the type of their parameter. Moments in float32 of a
parameter in bfloat16 would lose bits, and masks and counters would become floating-point numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn

Types = Mapping[str, torch.dtype]


def types_of(weights: Mapping[str, Any]) -> Types:
    """Return the types of weights, by name."""
    return {_plain(n): each.dtype for n, each in weights.items() if isinstance(each, torch.Tensor)}


def of_unchanged_type(model: nn.Module, types: Types) -> set[int]:
    """Return the ids of the parameters whose type is the one in `types`."""
    return {id(p) for name, p in model.named_parameters() if types.get(_plain(name)) == p.dtype}


@contextmanager
def types_kept(optimizers: Iterable[Any], parameters: set[int] | None = None) -> Iterator[None]:
    """Make optimizers that load a state keep its types, for the parameters with these ids, or for
    all.

    The state of a parameter whose type has changed gets the new type, as in torch.
    """
    with ExitStack() as hooks:
        for optimizer in optimizers:
            if isinstance(optimizer, torch.optim.Optimizer):
                _keep(optimizer, parameters, hooks)
        yield


def _keep(optimizer: torch.optim.Optimizer, parameters: set[int] | None, hooks: ExitStack) -> None:
    states: list[dict[str, Any]] = []

    def before(_: Any, state: dict[str, Any]) -> None:
        states[:] = [state]

    def behind(_: Any) -> None:
        [saved] = states
        states.clear()
        numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
        held = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        for number, parameter in zip(numbers, held, strict=True):
            if number in saved["state"] and (parameters is None or id(parameter) in parameters):
                optimizer.state[parameter] = _typed(
                    optimizer.state[parameter], saved["state"][number]
                )

    hooks.callback(optimizer.register_load_state_dict_pre_hook(before).remove)
    # The optimizer's own hooks run after this one.
    hooks.callback(optimizer.register_load_state_dict_post_hook(behind, prepend=True).remove)


def _typed(loaded: Any, saved: Any) -> Any:
    """Return a loaded state with the types of the saved one."""
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(saved, dict):
        return {key: _typed(loaded[key], inner) for key, inner in saved.items()}
    if isinstance(saved, (list, tuple)):
        return type(saved)(_typed(*pair) for pair in zip(loaded, saved, strict=True))
    return loaded


def _plain(name: str) -> str:
    """Return a name without the prefix that a distributed wrapper adds."""
    return name.removeprefix("module.")

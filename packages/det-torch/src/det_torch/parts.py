"""Saves and restores the parts of a trial.

These are models and their flags, optimizers, schedulers, the gradient scaler, and gradients that
wait for a step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from det_core import TrialError

from .context import PyTorchTrialContext
from .optimizer_state import of_unchanged_type, types_kept, types_of
from .sharding import Place, reshard
from .state import load_weights

_WAY_OUT = (
    "make all groups in the trial's __init__, with requires_grad off or a learning rate of 0 until"
    " they train"
)


def collect(context: PyTorchTrialContext) -> dict[str, Any]:
    """Return the states of the parts by their keys in a checkpoint."""
    reshard(context.models)
    contents: dict[str, Any] = {
        "models_state_dict": [model.state_dict() for model in context.models],
        "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in context.lr_schedulers],
    }
    if context.precision.scaler is not None:
        contents["scaler_state_dict"] = context.precision.scaler.state_dict()
    gradients = {
        f"{index}.{name}": p.grad
        for index, name, p in _parameters(context.models)
        if p.grad is not None
    }
    # Gradients of batches whose step is still to come.
    if gradients:
        contents["gradients"] = gradients
    contents |= flags(context.models)
    if context.lr_schedulers:
        contents["optimizer_steps"] = [
            scheduler.optimizer_steps for scheduler in context.lr_schedulers
        ]
    if any(groups := [_group_names(context, optimizer) for optimizer in context.optimizers]):
        contents["optimizer_groups"] = groups
    return contents


def like(context: PyTorchTrialContext) -> Callable[[Place, Any], Any]:
    """Return a function that finds the trial's tensor for a place in a checkpoint.

    A tensor at that place is sharded like the tensor that the function returns.
    """
    weights = [model.state_dict() for model in context.models] if context.sharding.used else []
    waiting = {
        f"{index}.{name}": parameter for index, name, parameter in _parameters(context.models)
    }
    stepped = [[p for group in o.param_groups for p in group["params"]] for o in context.optimizers]

    def found(place: Place, size: Any) -> Any:
        match place:
            case ("models_state_dict", int(index), name) if index < len(weights):
                return weights[index].get(name)
            case ("gradients", name):
                return waiting.get(name)
            case ("optimizers_state_dict", int(index), "state", int(number), _) if index < len(
                stepped
            ):
                return stepped[index][number] if number < len(stepped[index]) else None
        return None

    return found


def restore(
    context: PyTorchTrialContext, contents: Mapping[str, Any], *, warm: bool = False
) -> None:
    """Restore what `collect` returned, except the gradients.

    Raises TrialError for the state of another trial.

    On a `warm` start optimizers keep the groups that the trial has made.
    """
    _each("model", context.models, contents.get("models_state_dict", []), load_weights)
    states = list(contents.get("optimizers_state_dict", []))
    for index, (optimizer, groups) in enumerate(
        zip(context.optimizers, contents.get("optimizer_groups", []), strict=False)
    ):
        if groups is not None and not warm:
            regroup(context.models, optimizer, groups)
        elif groups is not None:
            states[index] = without_added_groups(context.models, optimizer, groups, states[index])
    pairs = zip(context.models, contents.get("models_state_dict", []), strict=False)
    unchanged = {
        each for model, weights in pairs for each in of_unchanged_type(model, types_of(weights))
    }
    with types_kept(context.optimizers, unchanged):
        _each("optimizer", context.optimizers, states, _load_state)
    _each(
        "LR scheduler",
        context.lr_schedulers,
        contents.get("lr_schedulers_state_dict", []),
        _load_state,
    )
    _restore_scaler(context.precision.scaler, contents.get("scaler_state_dict"))


def set_gradients(models: Sequence[nn.Module], gradients: Mapping[str, Any]) -> None:
    """Set the gradients of all parameters. Parameters without a saved gradient get None."""
    for index, name, parameter in _parameters(models):
        gradient = gradients.get(f"{index}.{name}")
        parameter.grad = (
            None if gradient is None else gradient.to(parameter.device, parameter.dtype)
        )


def flags(models: Sequence[nn.Module]) -> dict[str, list[list[str]]]:
    """Return the names of each model's modules in evaluation mode and of its parameters without
    gradient.
    """
    return {
        "evaluating": [
            [n for n, module in m.named_modules() if not module.training] for m in models
        ],
        "frozen": [[n for n, p in m.named_parameters() if not p.requires_grad] for m in models],
    }


def set_flags(models: Sequence[nn.Module], contents: Mapping[str, Any]) -> None:
    """Put the modules and parameters of `contents` into evaluation mode and without gradient, and
    no others.

    Older checkpoints do not list frozen parameters. Parameters then stay as the trial made them.
    """
    for model, names in zip(models, contents.get("evaluating", []), strict=False):
        evaluating = set(names)
        for name, module in model.named_modules():
            module.training = name not in evaluating
    for model, names in zip(models, contents.get("frozen", []), strict=False):
        frozen = set(names)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)


def _parameters(models: Sequence[nn.Module]) -> Iterator[tuple[int, str, nn.Parameter]]:
    for index, model in enumerate(models):
        for name, parameter in model.named_parameters():
            yield index, name, parameter


def _group_names(
    context: PyTorchTrialContext, optimizer: torch.optim.Optimizer
) -> list[list[str]] | None:
    """Return the names of the parameters in each group if the groups have changed since the
    optimizer was wrapped.

    Returns None otherwise. Raises TrialError if a resumed run could not make such groups again.
    """
    if context.has_first_groups(optimizer):
        return None
    if context.sharding.used:
        raise TrialError(
            "the groups of an optimizer were changed in training, and its model is sharded;"
            f" {_WAY_OUT}"
        )
    return group_names(context.models, optimizer)


def group_names(
    models: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    way_out: str = f"wrap its model, or {_WAY_OUT}",
) -> list[list[str]]:
    """Return the names of the parameters in each group.

    Raises TrialError, with a way out, for a parameter that no model has.
    """
    names = {id(p): f"{index}.{name}" for index, name, p in _parameters(models)}
    held = [[names.get(id(p)) for p in group["params"]] for group in optimizer.param_groups]
    if any(name is None for group in held for name in group):
        raise TrialError(
            f"{type(optimizer).__name__} was given a parameter in training that no wrapped model"
            f" has, so that a resumed run could not find it; {way_out}"
        )
    return held  # type: ignore[return-value]


def regroup(
    models: Sequence[nn.Module], optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[str]]
) -> None:
    """Give an optimizer the parameter groups of a checkpoint.

    The optimizer's own state restores their options.
    """
    named = {f"{index}.{name}": p for index, name, p in _parameters(models)}
    held = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    if held == [[id(named.get(name)) for name in names] for names in groups]:
        return
    if missing := [name for names in groups for name in names if name not in named]:
        raise TrialError(
            f"the checkpoint's optimizer holds {missing[0]}, which the trial's models lack; it is"
            " of another trial"
        )
    optimizer.param_groups.clear()
    for names in groups:
        optimizer.add_param_group({"params": [named[name] for name in names]})


def without_added_groups(
    models: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Sequence[str]],
    saved: Any,
) -> dict[str, Any]:
    """Return the part of an optimizer's saved state that fits the groups that it has now.

    `groups` names the parameters of each saved group. A group whose parameters differ from every
    saved group keeps its own options.
    """
    options = {
        tuple(names): group for names, group in zip(groups, saved["param_groups"], strict=True)
    }
    states = {
        name: saved["state"][index]
        for names, group in options.items()
        for name, index in zip(names, group["params"], strict=True)
        if index in saved["state"]
    }
    own = optimizer.state_dict()
    found: dict[str, Any] = {**saved, "state": {}, "param_groups": []}
    for names, group in zip(group_names(models, optimizer), own["param_groups"], strict=True):
        found["param_groups"].append(
            {**options.get(tuple(names), group), "params": group["params"]}
        )
        indices = zip(names, group["params"], strict=True)
        found["state"] |= {index: states[name] for name, index in indices if name in states}
    return found


def _load_state(part: Any, saved: Any) -> None:
    part.load_state_dict(saved)


def _each(
    what: str, parts: Sequence[Any], saved: Sequence[Any], load: Callable[[Any, Any], None]
) -> None:
    if len(parts) != len(saved):
        raise TrialError(
            f"the trial has {_counted(len(parts), what)}, but the checkpoint holds {len(saved)}; it"
            " is of another trial"
        )
    for part, of_part in zip(parts, saved, strict=True):
        try:
            load(part, of_part)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise TrialError(
                f"the checkpoint does not fit the trial's {what}: {_reason(error)}"
            ) from error


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _reason(error: Exception) -> str:
    """Return the first mismatch in one line, and the number of the others."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):  # torch's heading
        lines = lines[1:]
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return (lines[0] if lines else type(error).__name__) + more


def _restore_scaler(scaler: Any, saved: Any) -> None:
    if (scaler is None) != (saved is None):
        have, has = ("no", "a") if scaler is None else ("a", "no")
        warnings.warn(
            f"the trial has {have} gradient scaler, but the checkpoint has {has} state of one",
            stacklevel=1,
        )
    elif scaler is not None:
        scaler.load_state_dict(saved)

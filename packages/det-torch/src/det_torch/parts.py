"""The parts of a trial, to and from a checkpoint: models and their modes, optimizers, schedulers, scaler, waiting gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from det_core import TrialError

from .context import PyTorchTrialContext
from .sharding import Place, reshard
from .state import load_weights


def collect(context: PyTorchTrialContext) -> dict[str, Any]:
    """Return the states of the parts, by the keys that they have in a checkpoint."""
    reshard(context.models)
    contents: dict[str, Any] = {
        "models_state_dict": [model.state_dict() for model in context.models],
        "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in context.lr_schedulers],
    }
    if context.precision.scaler is not None:
        contents["scaler_state_dict"] = context.precision.scaler.state_dict()
    gradients = {f"{index}.{name}": p.grad for index, name, p in _parameters(context.models) if p.grad is not None}
    if gradients:  # of batches whose step is still to come
        contents["gradients"] = gradients
    evaluating = [[name for name, module in model.named_modules() if not module.training] for model in context.models]
    if any(evaluating):  # such as a normalization that the trial has frozen
        contents["evaluating"] = evaluating
    return contents


def like(context: PyTorchTrialContext) -> Callable[[Place, Any], Any]:
    """Return what tells, of a place in a checkpoint, the tensor that is divided among the ranks as what belongs there is."""
    weights = [model.state_dict() for model in context.models] if context.sharding.used else []
    waiting = {f"{index}.{name}": parameter for index, name, parameter in _parameters(context.models)}
    stepped = [[p for group in o.param_groups for p in group["params"]] for o in context.optimizers]

    def found(place: Place, size: Any) -> Any:
        match place:
            case ("models_state_dict", int(index), name) if index < len(weights):
                return weights[index].get(name)
            case ("gradients", name):
                return waiting.get(name)
            case ("optimizers_state_dict", int(index), "state", int(number), _) if index < len(stepped):
                return stepped[index][number] if number < len(stepped[index]) else None
        return None

    return found


def restore(context: PyTorchTrialContext, contents: Mapping[str, Any]) -> None:
    """Take up what `collect` returned, but for the gradients. Raises TrialError where it is of another trial."""
    _each("model", context.models, contents.get("models_state_dict", []), load_weights)
    _each("optimizer", context.optimizers, contents.get("optimizers_state_dict", []), _load_state)
    _each("LR scheduler", context.lr_schedulers, contents.get("lr_schedulers_state_dict", []), _load_state)
    _restore_scaler(context.precision.scaler, contents.get("scaler_state_dict"))


def set_gradients(models: Sequence[nn.Module], gradients: Mapping[str, Any]) -> None:
    """Put gradients back where they waited for their step; where there are none, leave none."""
    for index, name, parameter in _parameters(models):
        gradient = gradients.get(f"{index}.{name}")
        parameter.grad = None if gradient is None else gradient.to(parameter.device, parameter.dtype)


def set_evaluating(models: Sequence[nn.Module], evaluating: Sequence[Sequence[str]]) -> None:
    """Put the modules that are named for each model, and no other, out of training mode."""
    for model, names in zip(models, evaluating, strict=False):
        for name, module in model.named_modules():
            if name in names:
                module.training = False


def _parameters(models: Sequence[nn.Module]) -> Iterator[tuple[int, str, nn.Parameter]]:
    for index, model in enumerate(models):
        for name, parameter in model.named_parameters():
            yield index, name, parameter


def _load_state(part: Any, saved: Any) -> None:
    part.load_state_dict(saved)


def _each(what: str, parts: Sequence[Any], saved: Sequence[Any], load: Callable[[Any, Any], None]) -> None:
    if len(parts) != len(saved):
        raise TrialError(
            f"the trial has {_counted(len(parts), what)}, but the checkpoint holds {len(saved)}; it is of another trial"
        )
    for part, of_part in zip(parts, saved, strict=True):
        try:
            load(part, of_part)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise TrialError(f"the checkpoint does not fit the trial's {what}: {_reason(error)}") from error


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _reason(error: Exception) -> str:
    """Return the first thing that does not fit, in one line, and how many more there are."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):  # torch's heading
        lines = lines[1:]
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return (lines[0] if lines else type(error).__name__) + more


def _restore_scaler(scaler: Any, saved: Any) -> None:
    if (scaler is None) != (saved is None):
        have, has = ("no", "a") if scaler is None else ("a", "no")
        warnings.warn(f"the trial has {have} gradient scaler, but the checkpoint has {has} state of one", stacklevel=1)
    elif scaler is not None:
        scaler.load_state_dict(saved)

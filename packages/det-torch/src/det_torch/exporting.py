"""Models in the forms that others read: safetensors, an exported program of torch, ONNX.

A program needs inputs by which it is traced: they are what the model is called with when one batch is validated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ShapesCollection
from torch.utils._pytree import tree_leaves

from det_core import CheckpointError
from det_core.exporting import needs

from .build import build_loader, evaluation_step, full_evaluation, overrides
from .data import validation_batches
from .load import load_trial_from_checkpoint_path

EXTRA = "det-torch[export]"
_LARGE = 1_900_000_000


@dataclass(frozen=True)
class Call:
    """A module, and with what it was called."""

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def safetensors(directory: Path, target: Path) -> None:
    """Write the weights of each model to `model.safetensors`, or `model-0.safetensors` and so on where there are several."""
    trial: Any = load_trial_from_checkpoint_path(directory)
    save_weights(_numbered(trial.context.models), target)


def torch_export(directory: Path, target: Path) -> None:
    """Write each model as a program, `model.pt2`, which `torch.export.load` reads."""
    save_programs(_calls(directory), target)


def onnx(directory: Path, target: Path) -> None:
    """Write each model as `model.onnx`."""
    save_onnx(_calls(directory), target)


def save_weights(models: Mapping[str, nn.Module], target: Path) -> None:
    """Write the weights of models, by the names of their files; weights that are the same tensor are written once."""
    try:
        from safetensors.torch import save_model
    except ImportError:
        raise needs("safetensors", EXTRA) from None
    for name, model in models.items():
        save_model(model, str(target / f"{name}.safetensors"))


def save_programs(calls: Mapping[str, Call], target: Path) -> None:
    """Trace modules, in evaluation mode, for batches of any size, and write them."""
    for name, call in calls.items():
        torch.export.save(_program(call), target / f"{name}.pt2")


def save_onnx(calls: Mapping[str, Call], target: Path) -> None:
    """Write modules as ONNX, weights and all in one file each where that is less than the two gigabytes of the format."""
    try:
        import onnxscript  # noqa: F401  # torch.onnx asks for it, in the middle of its work
    except ImportError:
        raise needs("onnxscript", EXTRA) from None
    for name, call in calls.items():
        large = sum(tensor.nbytes for tensor in call.module.state_dict().values()) > _LARGE
        torch.onnx.export(_program(call), f=str(target / f"{name}.onnx"), external_data=large, verbose=False)


def recorded(modules: Mapping[str, nn.Module], evaluate: Callable[[], object]) -> dict[str, Call]:
    """Return with what each module is called, in evaluation mode, while `evaluate` runs, which may fail behind that.

    In the place of a module that is not called itself are those of its parts that are, the outermost of those with weights.
    Raises CheckpointError where nothing is called.
    """
    found: dict[str, Call] = {}
    inside: list[nn.Module] = []

    def enters(name: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if not inside:
            found.setdefault(name, Call(module, arguments, keywords))
        inside.append(module)

    with ExitStack() as stack:
        for name, module in modules.items():
            module.eval()
            for path, part in module.named_modules():
                if next(part.parameters(), None) is None:
                    continue
                own = f"{name}.{path}" if path else name
                stack.callback(part.register_forward_pre_hook(partial(_hook, enters, own), with_kwargs=True).remove)
                stack.callback(part.register_forward_hook(lambda *_: void(inside.pop())).remove)
        failure = None
        try:
            with torch.no_grad():
                evaluate()
        except Exception as error:  # with the calls noted, what the step does with their results is of no account
            failure = error
    if not found:
        raise CheckpointError(
            f"validating a batch calls no model{f': {failure}' if failure else ''}; the format safetensors needs no call"
        ) from failure
    return found if len(found) > 1 else {"model": next(iter(found.values()))}


def _hook(enters: Callable[..., None], name: str, module: nn.Module, arguments: Any, keywords: Any) -> None:
    enters(name, module, tuple(arguments), dict(keywords))


def void(_: object) -> None:
    """A hook that returns something replaces what the module returned."""


def _numbered(models: list[Any]) -> dict[str, nn.Module]:
    return {"model" if len(models) == 1 else f"model-{k}": model for k, model in enumerate(models)}


def _calls(directory: Path) -> dict[str, Call]:
    trial: Any = load_trial_from_checkpoint_path(directory)
    context = trial.context
    loader = build_loader(context, trial.build_validation_data_loader, "validation")

    def evaluate() -> None:
        with closing(validation_batches(loader, rank=0, size=1)) as batches:
            if overrides(trial, "evaluate_full_dataset"):
                full_evaluation(trial, context)(batches)
            else:
                evaluation_step(trial, context)(next(iter(batches)), 0)

    return recorded(_numbered(context.models), evaluate)


def _program(call: Call) -> Any:
    shapes: Any = ShapesCollection()  # type: ignore[no-untyped-call]
    for leaf in tree_leaves((call.arguments, call.keywords)):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            shapes[leaf] = {0: Dim.AUTO}
    given = shapes.dynamic_shapes(call.module, call.arguments, call.keywords)
    try:
        return torch.export.export(call.module, call.arguments, call.keywords, dynamic_shapes=given)
    except Exception as error:
        said = " ".join(str(error).split())
        raise CheckpointError(f"torch.export cannot follow {type(call.module).__name__}: {said[:500]}") from error

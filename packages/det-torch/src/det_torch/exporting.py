"""Exports models as safetensors, as programs of `torch.export`, and as ONNX.

torch traces a program with example inputs. These are the arguments with which a validation batch
calls the model.
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
from det_core.train.exporting import needs

from .build import build_loader, evaluation_step, full_evaluation, overrides
from .data import validation_batches
from .load import load_trial_from_checkpoint_path

EXTRA = ("det-torch", "export")
_LARGE = 1_900_000_000


@dataclass(frozen=True)
class Call:
    """A module and the arguments of one call."""

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def safetensors(directory: Path, target: Path) -> None:
    """Write the weights of each model to `model.safetensors`.

    Several models are written to `model-0.safetensors` and so on.
    """
    trial: Any = load_trial_from_checkpoint_path(directory)
    save_weights(_numbered(trial.context.models), target)


def torch_export(directory: Path, target: Path) -> None:
    """Write each model as a program, `model.pt2`, which `torch.export.load` reads."""
    save_programs(_calls(directory), target)


def onnx(directory: Path, target: Path) -> None:
    """Write each model as `model.onnx`."""
    save_onnx(_calls(directory), target)


def save_weights(models: Mapping[str, nn.Module], target: Path) -> None:
    """Write the weights of models to files with their names.

    Weights that are the same tensor are written once.
    """
    try:
        from safetensors.torch import save_model
    except ImportError:
        raise needs("safetensors", *EXTRA) from None
    for name, model in models.items():
        save_model(model, str(target / f"{name}.safetensors"))


def save_programs(calls: Mapping[str, Call], target: Path) -> None:
    """Trace modules in evaluation mode for batches of any size, and write the programs."""
    for name, call in calls.items():
        torch.export.save(_program(call), target / f"{name}.pt2")


def save_onnx(calls: Mapping[str, Call], target: Path) -> None:
    """Write modules as ONNX.

    Weights are in the same file, unless they exceed the format's limit of two gigabytes.
    """
    try:
        import onnxscript  # noqa: F401  # torch.onnx asks for it, in the middle of its work
    except ImportError:
        raise needs("onnxscript", *EXTRA) from None
    for name, call in calls.items():
        large = sum(tensor.nbytes for tensor in call.module.state_dict().values()) > _LARGE
        torch.onnx.export(
            _program(call), f=str(target / f"{name}.onnx"), external_data=large, verbose=False
        )


def recorded(modules: Mapping[str, nn.Module], evaluate: Callable[[], object]) -> dict[str, Call]:
    """Return the first call of each module while `evaluate` runs.

    Modules are in evaluation mode. `evaluate` may fail after the calls.

    If a module itself is not called, the outermost of its submodules that are called and have
    weights replace it. Raises CheckpointError if no module is called.
    """
    found: dict[str, Call] = {}
    inside: list[nn.Module] = []

    def enters(
        name: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
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
                stack.callback(
                    part.register_forward_pre_hook(
                        partial(_hook, enters, own), with_kwargs=True
                    ).remove
                )
                stack.callback(part.register_forward_hook(lambda *_: void(inside.pop())).remove)
        failure = None
        try:
            with torch.no_grad():
                evaluate()
        except Exception as error:
            # The calls have been recorded. A later failure of the step does not matter.
            failure = error
    if not found:
        raise CheckpointError(
            f"validating a batch calls no model{f': {failure}' if failure else ''}; the format"
            " safetensors needs no call"
        ) from failure
    return found if len(found) > 1 else {"model": next(iter(found.values()))}


def _hook(
    enters: Callable[..., None], name: str, module: nn.Module, arguments: Any, keywords: Any
) -> None:
    enters(name, module, tuple(arguments), dict(keywords))


def void(_: object) -> None:
    """Return None, as a hook that returns another value replaces the module's output."""


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
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"torch.export cannot follow {type(call.module).__name__}: {reason[:500]}"
        ) from error

"""Exports a module in the forms of det-torch.

The example batch is the first of the validation data.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import CombinedLoader
from torch.utils._pytree import tree_leaves

from det_core import CheckpointError
from det_torch.data import validation_batches
from det_torch.exporting import Call, recorded, save_onnx, save_programs, save_weights

from .load import load_trial_from_checkpoint_path
from .trial import LightningAdapter, own


def safetensors(directory: Path, target: Path) -> None:
    """Write the module's weights to `model.safetensors`."""
    save_weights({"model": load_trial_from_checkpoint_path(directory).lightning_module}, target)


def torch_export(directory: Path, target: Path) -> None:
    """Write the module, or the parts that a validation step calls, as programs that
    `torch.export.load` reads.
    """
    save_programs(_calls(directory), target)


def onnx(directory: Path, target: Path) -> None:
    """Write the module, or the parts that a validation step calls, as ONNX."""
    save_onnx(_calls(directory), target)


def _calls(directory: Path) -> dict[str, Call]:
    trial = load_trial_from_checkpoint_path(directory)
    module: Any = trial.lightning_module

    def evaluate() -> None:
        example = module.example_input_array
        if example is not None:
            module(*example) if isinstance(example, tuple) else module(example)
        else:
            with closing(validation_batches(_validation_loader(trial), rank=0, size=1)) as batches:
                module.validation_step(next(iter(batches)), 0)

    return recorded({"model": module}, evaluate)


def _validation_loader(trial: LightningAdapter) -> Any:
    """Return the first of the validation loaders."""
    module: Any = trial.lightning_module
    if (build := own(trial, "build_validation_data_loader")) is not None:
        loaders = build()
    elif (data := trial.datamodule) is not None:
        data.prepare_data()
        data.setup("validate")
        loaders = data.val_dataloader()
    else:
        module.prepare_data()
        module.setup("validate")
        loaders = module.val_dataloader()
    leaves = tree_leaves(loaders.iterables if isinstance(loaders, CombinedLoader) else loaders)
    if not leaves:
        raise CheckpointError(
            "there is no validation data; set example_input_array of the LightningModule"
        )
    return leaves[0]

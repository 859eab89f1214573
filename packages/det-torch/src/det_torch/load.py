"""Loads a trial from a checkpoint for use without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from det_core import CheckpointError
from det_core.train.load_data import loading_run, read_load_data, trial_class_of

from . import state
from .build import build_trial
from .context import PyTorchTrialContext
from .trial import PyTorchTrial

_MEANT = {"map_location", "weights_only", "mmap"}


class CheckpointLoadContext(PyTorchTrialContext):
    """The context of a trial that is loaded. Models stay on the CPU and nothing is wrapped."""

    def __init__(
        self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None
    ) -> None:
        run = loading_run("torch", hparams, exp_conf)
        super().__init__(run, torch.device("cpu"), managed=False)


def load_trial_from_checkpoint_path(
    path: str | Path,
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    torch_load_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> PyTorchTrial:
    """Return the trial of the checkpoint in the directory `path`, with its weights, on the CPU.

    The class is imported from the checkpoint's `code/`, whose code this runs, unless `trial_class`
    gives it. `trial_kwargs` go to its constructor. The weights are never unpickled.
    `torch_load_kwargs` is accepted for older callers.

    Raises CheckpointError if the directory holds no checkpoint, or one of another trial. Raises
    ValueError if both forms of keyword arguments are given.
    """
    if trial_kwargs and kwargs:
        raise ValueError("give the trial's arguments as trial_kwargs or as keywords, not both")
    _check_options(torch_load_kwargs or {})
    directory = Path(path)
    facts = read_load_data(directory)
    with trial_class_of(directory, facts, PyTorchTrial, trial_class) as chosen:
        context = CheckpointLoadContext(facts.get("hparams"), facts.get("experiment_config"))
        trial = build_trial(chosen, context, **{**(trial_kwargs or {}), **kwargs})
    _load(context, directory, chosen)
    return trial


def tensors(path: Path) -> dict[str, Any]:
    """Return the weights of a checkpoint, and the states of its optimizers and schedulers, for
    `det verify`.
    """
    return {name: value for name, value in state.load(path).items() if name.endswith("_state_dict")}


def _load(context: PyTorchTrialContext, directory: Path, trial_class: type) -> None:
    weights = state.load(directory).get("models_state_dict", [])
    way_out = "give the trial_class that the checkpoint is of"
    if len(weights) != len(context.models):
        raise CheckpointError(
            f"{directory} holds {len(weights)} models, but {trial_class.__name__} wraps"
            f" {len(context.models)}; {way_out}"
        )
    for model, saved in zip(context.models, weights, strict=True):
        try:
            state.load_weights(model, saved)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"{directory} does not fit {trial_class.__name__}: {reason}; {way_out}"
            ) from error


def _check_options(options: Mapping[str, Any]) -> None:
    if not options.get("weights_only", True):
        raise ValueError(
            "torch_load_kwargs has weights_only=False; det unpickles nothing: leave it out"
        )
    strange = sorted(options.keys() - _MEANT)
    if strange:
        raise ValueError(
            f"torch_load_kwargs has {strange[0]!r}; leave it out: det reads weights only, on"
            " the CPU"
        )

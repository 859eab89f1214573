"""A trial out of a checkpoint, to be used rather than trained."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from det_core import CheckpointError, ConfigError, DistributedContext, Plugins, RunInfo, import_from_path, load_trial
from det_core.config import ExperimentConfig, parse

from . import state
from .build import build_trial
from .context import PyTorchTrialContext
from .trial import PyTorchTrial

_FACTS = ("load_data.json", "metadata.json")
_MEANT = {"map_location", "weights_only", "mmap"}


class CheckpointLoadContext(PyTorchTrialContext):
    """The context of a trial that is loaded: models stay on the CPU, nothing is wrapped."""

    def __init__(self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None) -> None:
        run = RunInfo(
            config=_config(exp_conf),
            hparams=dict(hparams or {}),
            seed=0,
            build=Plugins().build("torch"),
            distributed=DistributedContext(),
        )
        super().__init__(run, torch.device("cpu"), managed=False)


def load_trial_from_checkpoint_path(
    path: str | Path,
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    torch_load_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> PyTorchTrial:
    """Return the trial of the checkpoint in the directory `path`, with its weights, on the CPU.

    The class is imported from the checkpoint's own `code/`, which is run for that, unless `trial_class` gives it;
    `trial_kwargs` go to its constructor. The weights are never unpickled. `torch_load_kwargs` is taken for old callers' sake.
    Raises CheckpointError for a directory that holds no checkpoint, or one of another trial, and ValueError when both forms
    of keyword arguments are given.
    """
    if trial_kwargs and kwargs:
        raise ValueError("give the trial's arguments as trial_kwargs or as keywords, not both")
    _check_options(torch_load_kwargs or {})
    directory = Path(path)
    facts = _facts(directory)
    code = directory / "code"
    with import_from_path(code) if trial_class is None and code.is_dir() else nullcontext():
        chosen = _checked(trial_class or _class_of(facts, directory))
        context = CheckpointLoadContext(facts.get("hparams"), facts.get("experiment_config"))
        trial = build_trial(chosen, context, **{**(trial_kwargs or {}), **kwargs})
    _load(context, directory, chosen)
    return trial


def _load(context: PyTorchTrialContext, directory: Path, trial_class: type) -> None:
    weights = state.load(directory).get("models_state_dict", [])
    way_out = "give the trial_class that the checkpoint is of"
    if len(weights) != len(context.models):
        raise CheckpointError(
            f"{directory} holds {len(weights)} models, but {trial_class.__name__} wraps {len(context.models)}; {way_out}"
        )
    for model, saved in zip(context.models, weights, strict=True):
        try:
            state.load_weights(model, saved)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{directory} does not fit {trial_class.__name__}: {reason}; {way_out}") from error


def _facts(directory: Path) -> dict[str, Any]:
    for name in _FACTS:
        file = directory / name
        if file.is_file():
            try:
                facts: dict[str, Any] = json.loads(file.read_text())
            except ValueError as error:
                raise CheckpointError(f"{file} is not JSON: {error}; the checkpoint is damaged") from error
            return facts
    raise CheckpointError(f"{directory} holds neither {_FACTS[0]} nor {_FACTS[1]}; name the directory of a checkpoint")


def _class_of(facts: Mapping[str, Any], directory: Path) -> type:
    spec = facts.get("trial_cls_spec") or (facts.get("experiment_config") or {}).get("entrypoint")
    if not isinstance(spec, str) or ":" not in spec:
        raise CheckpointError(f"{directory} does not say which trial class it is of; give it as trial_class")
    module, _, name = spec.partition(":")
    if module == "__main__" or "<locals>" in name:
        where = "in a script or a notebook" if module == "__main__" else "inside a function"
        raise CheckpointError(
            f"the trial of {directory} was defined {where} ({spec}), from where it cannot be imported; give it as "
            f"trial_class, or keep it in a module of its own"
        )
    return load_trial(spec, directory / "code")


def _checked(trial_class: type) -> type[PyTorchTrial]:
    if not issubclass(trial_class, PyTorchTrial):
        raise CheckpointError(
            f"{trial_class.__module__}.{trial_class.__qualname__} is no PyTorchTrial; give the trial_class of the checkpoint"
        )
    return trial_class


def _config(exp_conf: Mapping[str, Any] | None) -> ExperimentConfig:
    """Read a configuration; one that only another version understands still gives its `data`."""
    if not exp_conf:
        return ExperimentConfig()
    try:
        return parse(dict(exp_conf)).config
    except ConfigError as error:
        warnings.warn(f"the checkpoint's configuration is read in part: {error.problems[0]}", stacklevel=2)
        data = exp_conf.get("data")
        return ExperimentConfig(data=dict(data) if isinstance(data, Mapping) else {})


def _check_options(options: Mapping[str, Any]) -> None:
    if not options.get("weights_only", True):
        raise ValueError("torch_load_kwargs has weights_only=False; det unpickles nothing: leave it out")
    strange = sorted(options.keys() - _MEANT)
    if strange:
        raise ValueError(f"torch_load_kwargs has {strange[0]!r}; leave it out: det reads weights only, on the CPU")

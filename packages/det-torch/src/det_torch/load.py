"""A trial out of a checkpoint, to be used rather than trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from det_core import CheckpointError, DistributedContext, Plugins, RunInfo, load_trial
from det_core.config import ExperimentConfig, parse

from . import state
from .build import build_trial
from .context import PyTorchTrialContext
from .trial import PyTorchTrial

_FACTS = ("load_data.json", "metadata.json")


class CheckpointLoadContext(PyTorchTrialContext):
    """The context of a trial that is loaded: models stay on the CPU, nothing is wrapped."""

    def __init__(self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None) -> None:
        config = parse(dict(exp_conf), complete=False).config if exp_conf else ExperimentConfig()
        plugins = Plugins()
        run = RunInfo(
            config=config,
            hparams=dict(hparams or {}),
            seed=0,
            build=plugins.build("torch"),
            distributed=DistributedContext(),
        )
        super().__init__(run, torch.device("cpu"), managed=False)


def load_trial_from_checkpoint_path(
    path: str | Path,
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> PyTorchTrial:
    """Return the trial of the checkpoint in the directory `path`, with its weights, on the CPU.

    The class is imported from the checkpoint's own `code/`, unless `trial_class` gives it; `trial_kwargs` go to its constructor.
    Raises CheckpointError for a directory that holds no checkpoint, ValueError when both forms of keyword arguments are given.
    """
    if trial_kwargs and kwargs:
        raise ValueError("give the trial's arguments as trial_kwargs or as keywords, not both")
    directory = Path(path)
    facts = _facts(directory)
    context = CheckpointLoadContext(facts.get("hparams"), facts.get("experiment_config"))
    trial = build_trial(trial_class or _class_of(facts, directory), context, **{**(trial_kwargs or {}), **kwargs})
    weights = state.load(directory).get("models_state_dict", [])
    if len(weights) != len(context.models):
        raise CheckpointError(
            f"{directory} holds {len(weights)} models, but {type(trial).__name__} wraps {len(context.models)}; give the "
            "trial_class that the checkpoint is of"
        )
    for model, saved in zip(context.models, weights, strict=True):
        state.load_weights(model, saved)
    return trial


def _facts(directory: Path) -> dict[str, Any]:
    for name in _FACTS:
        file = directory / name
        if file.is_file():
            facts: dict[str, Any] = json.loads(file.read_text())
            return facts
    raise CheckpointError(f"{directory} holds neither {_FACTS[0]} nor {_FACTS[1]}; name the directory of a checkpoint")


def _class_of(facts: Mapping[str, Any], directory: Path) -> type[PyTorchTrial]:
    spec = facts.get("trial_cls_spec") or (facts.get("experiment_config") or {}).get("entrypoint")
    if not isinstance(spec, str) or ":" not in spec:
        raise CheckpointError(f"{directory} does not say which trial class it is of; give it as trial_class")
    return load_trial(spec, directory / "code")

"""A model out of a checkpoint, to be used rather than trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from det_core import (
    CheckpointError,
    ConfigError,
    DistributedContext,
    Plugins,
    RunInfo,
    TrialError,
    import_from_path,
    load_trial,
)
from det_core.config import ExperimentConfig, parse

from .build import build_trial
from .context import TFKerasTrialContext
from .trial import TFKerasTrial
from .versions import check_backend, keras
from .weights import MODEL, read_weights, weights_file

_FACTS = ("load_data.json", "metadata.json")


def load_model_from_checkpoint_path(
    path: str | Path, tags: Sequence[str] | None = None, *, trial_class: type[TFKerasTrial] | None = None
) -> Any:
    """Return the model of the checkpoint in the directory `path`, compiled, with its weights.

    The trial class is imported from the checkpoint's own `code/`, which is run for that, unless `trial_class` gives it; without
    either, Keras makes the model from its own description, in safe mode: nothing is run that the file holds.
    `tags` is taken for old callers' sake. Raises CheckpointError for a directory that holds no checkpoint, or one of another
    trial.
    """
    check_backend()
    directory = Path(path)
    file = weights_file(directory)
    code = directory / "code"
    if trial_class is None and not code.is_dir() and file.name == MODEL:
        return _described(file)
    facts = _facts(directory)
    with import_from_path(code) if trial_class is None and code.is_dir() else nullcontext():
        chosen = trial_class or _class_of(facts, directory)
        if not issubclass(chosen, TFKerasTrial):
            raise CheckpointError(
                f"{chosen.__module__}.{chosen.__qualname__} is no TFKerasTrial; give the trial_class of the checkpoint"
            )
        context = _context(facts)
        trial: Any = build_trial(chosen, context)
        if callable(getattr(trial, "build_optimizer", None)):
            trial.optimizer = trial.build_optimizer()
        model = trial.build_model()
    try:
        read_weights(model, directory)
    except TrialError as error:
        raise CheckpointError(
            f"{directory} does not fit {chosen.__name__}: {error}; give the trial_class of the checkpoint"
        ) from error
    return model


def _described(file: Path) -> Any:
    try:
        return keras.models.load_model(str(file), safe_mode=True)
    except (ValueError, TypeError, KeyError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"{file} cannot be loaded safely: {lines[0]}; give the trial_class of the checkpoint"
        ) from error


def _context(facts: Mapping[str, Any]) -> TFKerasTrialContext:
    config = facts.get("experiment_config")
    try:
        parsed = parse(dict(config)).config if config else ExperimentConfig()
    except ConfigError:  # of another version; the model is made from its hyperparameters
        parsed = ExperimentConfig()
    run = RunInfo(
        config=parsed,
        hparams=dict(facts.get("hparams") or {}),
        seed=0,
        build=Plugins().build("keras"),
        distributed=DistributedContext(),
    )
    return TFKerasTrialContext(run, managed=False)


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
    if not isinstance(spec, str) or ":" not in spec or spec.startswith("__main__:") or "<locals>" in spec:
        raise CheckpointError(
            f"{directory} does not say which trial class it is of, or one that cannot be imported; give it as trial_class"
        )
    return load_trial(spec, directory / "code")

"""A model out of a checkpoint, to be used rather than trained."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from det_core import CheckpointError, TrialError
from det_core.load_data import loading_run, read_load_data, trial_class_of

from .build import build_trial
from .context import TFKerasTrialContext
from .state import ARRAYS
from .trial import TFKerasTrial
from .versions import check_backend, keras
from .weights import MODEL, WEIGHTS, read_weights, weights_file


def load_model_from_checkpoint_path(
    path: str | Path, tags: Sequence[str] | None = None, *, trial_class: type[TFKerasTrial] | None = None
) -> Any:
    """Return the model of the checkpoint in the directory `path`, compiled, with its weights.

    The trial class is imported from the checkpoint's own `code/`, which is run for that, unless `trial_class` gives it; without
    either, Keras makes the model from its own description, in safe mode: nothing is run that the file holds. Weights that
    Determined saved, as HDF5, as TensorFlow's checkpoint or as a saved model, go into the model that the trial builds.
    `tags` is taken for old callers' sake. Raises CheckpointError for a directory that holds no checkpoint, or one of another
    trial.
    """
    check_backend()
    directory = Path(path)
    file = weights_file(directory)
    if trial_class is None and not (directory / "code").is_dir() and file.name == MODEL:
        return _described(file)
    facts = read_load_data(directory)
    with trial_class_of(directory, facts, TFKerasTrial, trial_class) as chosen:
        run = loading_run("keras", facts.get("hparams"), facts.get("experiment_config"))
        trial: Any = build_trial(chosen, TFKerasTrialContext(run, managed=False))
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


def tensors(path: Path) -> dict[str, Any]:
    """Return the weights of a checkpoint, and the rest of its arrays such as those of optimizers, for `det verify`."""
    file = weights_file(path)
    with ExitStack() as stack:
        source: Any = file
        if file.suffix == ".keras":
            source = io.BytesIO(stack.enter_context(zipfile.ZipFile(file)).read(WEIGHTS))
        found: dict[str, Any] = {}
        held = stack.enter_context(h5py.File(source, "r"))
        held.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
        arrays = stack.enter_context(np.load(path / ARRAYS, allow_pickle=False))
        return {"weights": found, "state": {name: arrays[name] for name in arrays.files}}

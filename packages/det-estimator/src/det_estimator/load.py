"""A saved model, or an estimator, out of a checkpoint, to be used rather than trained."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import CheckpointError
from det_core.load_data import loading_run, read_load_data, trial_class_of

from .build import build_trial, remove_empty
from .context import EstimatorTrialContext
from .trial import EstimatorTrial


def load_estimator_from_checkpoint_path(
    path: str | Path,
    tags: Sequence[str] | None = None,
    name: str | None = None,
    *,
    trial_class: type[EstimatorTrial] | None = None,
) -> Any:
    """Return the saved model of the checkpoint in the directory `path`, loaded by `tf.saved_model.load`.

    `name` is that which `build_serving_input_receiver_fns` gave it; it may be left out where there is one. Where there is none at
    all, as in checkpoints of a trial without receivers, return the trial's `tf.estimator.Estimator` instead, whose `model_dir` is
    the checkpoint: it predicts and evaluates with the variables there. Its class is imported from the checkpoint's own `code/`,
    which is run for that, unless `trial_class` gives it. Raises CheckpointError where there is no model of that name, more than
    one and no name, or neither a model nor variables.
    """
    directory = Path(path)
    models = {file.parent.name: file.parent for file in sorted(directory.glob("*/saved_model.pb"))}
    known = ", ".join(models) or "none"
    if name is None and not models:
        return _estimator(directory, trial_class)
    if name is None and len(models) > 1:
        raise CheckpointError(f"{directory} holds {len(models)} saved models ({known}); say which one by name")
    if name is not None and name not in models:
        raise CheckpointError(f"{directory} holds no saved model {name!r}; there are: {known}")
    chosen = models[name] if name is not None else next(iter(models.values()))
    return tf.saved_model.load(str(chosen), tags=list(tags) if tags else None)


def _estimator(directory: Path, trial_class: type[EstimatorTrial] | None) -> Any:
    if tf.train.latest_checkpoint(str(directory)) is None:
        raise CheckpointError(
            f"{directory} holds neither a saved model nor an estimator's variables; name the directory of a checkpoint of an "
            "EstimatorTrial"
        )
    facts = read_load_data(directory)
    with trial_class_of(directory, facts, EstimatorTrial, trial_class) as chosen:
        run = loading_run("estimator", facts.get("hparams"), facts.get("experiment_config"))
        given = build_trial(chosen, EstimatorTrialContext(run, managed=False)).build_estimator()
    remove_empty(given.model_dir)
    return tf.compat.v1.estimator.Estimator(given.model_fn, config=given.config.replace(model_dir=str(directory)))


def export_saved_model(directory: Path, target: Path) -> None:
    """Copy the checkpoint's saved model, or each of several into a folder of its name, as TensorFlow serves them."""
    models = sorted(file.parent for file in directory.glob("*/saved_model.pb"))
    if not models:
        raise CheckpointError("the checkpoint has no saved model: define build_serving_input_receiver_fns in the trial")
    for model in models:
        shutil.copytree(model, target if len(models) == 1 else target / model.name, dirs_exist_ok=True)


def tensors(path: Path) -> dict[str, Any]:
    """Return the variables of a checkpoint, those of optimizers with them, for `det verify`."""
    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}

"""Loads a saved model, or an estimator, from a checkpoint, for use without training."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import CheckpointError
from det_core.train.load_data import loading_run, read_load_data, trial_class_of
from det_keras.bundles import check_variables, unreadable

from .build import build_trial, remove_empty
from .context import EstimatorTrialContext
from .exports import EVENTS, EXPORTS
from .trial import EstimatorTrial


def load_estimator_from_checkpoint_path(
    path: str | Path,
    tags: Sequence[str] | None = None,
    name: str | None = None,
    *,
    trial_class: type[EstimatorTrial] | None = None,
) -> Any:
    """Return the saved model of a checkpoint, loaded by `tf.saved_model.load`.

    `path` is the checkpoint's directory. `name` is the name that `build_serving_input_receiver_fns`
    gave the model. It is optional if there is only one.

    A checkpoint of a trial without receivers has no saved model. Then the trial's
    `tf.estimator.Estimator` is returned, whose `model_dir` is the checkpoint. It predicts and
    evaluates with the variables there. The trial class is `trial_class`, or else is imported from
    the checkpoint's `code/`, which executes that code.

    Raises CheckpointError if there is no model of that name, if there are several and no `name`, or
    if there is neither a model nor variables.
    """
    directory = Path(path)
    models = find_saved_models(directory)
    known = ", ".join(models) or "none"
    if name is None and not models:
        return _estimator(directory, trial_class)
    if name is None and len(models) > 1:
        raise CheckpointError(
            f"{directory} holds {len(models)} saved models ({known}); say which one by name"
        )
    if name is not None and name not in models:
        raise CheckpointError(f"{directory} holds no saved model {name!r}; there are: {known}")
    chosen = models[name] if name is not None else next(iter(models.values()))
    try:
        return tf.saved_model.load(str(chosen), tags=list(tags) if tags else None)
    # TensorFlow raises errors of many types for malformed files.
    except Exception as error:
        raise unreadable(chosen, error) from error


def find_saved_models(directory: Path) -> dict[str, Path]:
    """Return the saved models of a checkpoint by name.

    A model is in `NAME/saved_model.pb`, or, as Determined wrote it, in the newest
    `NAME/TIMESTAMP/saved_model.pb`. Models of exporters, and in the user's code, are left out.
    """
    found = {}
    for file in sorted(
        directory.glob("*/*/saved_model.pb"),
        key=lambda file: (len(file.parent.name), file.parent.name),
    ):
        if file.parent.name.isdecimal():
            found[file.parts[-3]] = file.parent
    found |= {file.parent.name: file.parent for file in directory.glob("*/saved_model.pb")}
    return {name: found[name] for name in sorted(found) if name not in (EXPORTS, EVENTS, "code")}


def find_variables(directory: Path) -> Path | None:
    """Return the prefix of a checkpoint's variables, or None if there are none.

    The file `checkpoint` may contain a path on the host that wrote it. Only the last part of that
    path is used.
    """
    state = _named(directory)
    named = (
        [Path(state.model_checkpoint_path).name]
        if state is not None and state.model_checkpoint_path
        else []
    )
    newest = sorted(
        directory.glob("*.index"), key=lambda file: (len(file.name), file.name), reverse=True
    )
    prefixes = (directory / name for name in (*named, *(file.stem for file in newest)))
    return next(
        (prefix for prefix in prefixes if prefix.with_name(f"{prefix.name}.index").is_file()), None
    )


def find_old_variables(directory: Path) -> Path | None:
    """Return the prefix of the variables that Determined saved.

    They are those of a saved model if there are no others.
    """
    models = [model / "variables" / "variables" for model in find_saved_models(directory).values()]
    saved = (prefix for prefix in models if prefix.with_name("variables.index").is_file())
    return find_variables(directory) or next(saved, None)


def _named(directory: Path) -> Any:
    """Return the content of the file `checkpoint`, or None if there is none or it is damaged."""
    try:
        return tf.train.get_checkpoint_state(str(directory))
    # TensorFlow and protobuf raise errors of many types for malformed files.
    except Exception:
        return None


def _estimator(directory: Path, trial_class: type[EstimatorTrial] | None) -> Any:
    prefix = find_variables(directory)
    if prefix is None:
        raise CheckpointError(
            f"{directory} holds neither a saved model nor an estimator's variables; name the"
            " directory of a checkpoint of an EstimatorTrial"
        )
    check_variables(prefix)
    facts = read_load_data(directory, trial_class)
    with trial_class_of(directory, facts, EstimatorTrial, trial_class) as chosen:
        run = loading_run("estimator", facts.get("hparams"), facts.get("experiment_config"))
        given = build_trial(chosen, EstimatorTrialContext(run, managed=False)).build_estimator()
    remove_empty(given.model_dir)
    place = directory
    state = _named(directory)
    if state is None or state.model_checkpoint_path != str(prefix):
        # An estimator follows the paths in its directory's `checkpoint`.
        place = Path(tempfile.mkdtemp(prefix="det-estimator-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        tf.compat.v1.train.update_checkpoint_state(str(place), str(prefix.absolute()))
    return tf.compat.v1.estimator.Estimator(
        given.model_fn, config=given.config.replace(model_dir=str(place))
    )


def export_saved_model(directory: Path, target: Path) -> None:
    """Copy the checkpoint's saved model in TensorFlow's serving format.

    If there are several, each is copied into a folder of its name.
    """
    models = find_saved_models(directory)
    if not models:
        raise CheckpointError(
            "the checkpoint has no saved model: define build_serving_input_receiver_fns in the"
            " trial"
        )
    for name, model in models.items():
        shutil.copytree(model, target if len(models) == 1 else target / name, dirs_exist_ok=True)


def tensors(path: Path) -> dict[str, Any]:
    """Return the variables of a checkpoint, including those of optimizers, for `det verify`."""
    prefix = find_variables(path) or path
    check_variables(prefix)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        return {
            name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())
        }
    # TensorFlow raises errors of many types for malformed files.
    except Exception as error:
        raise unreadable(prefix, error) from error

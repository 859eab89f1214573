"""Loads a model from a checkpoint, for use without training."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from det_core import CheckpointError, TrialError
from det_core.support.archives import check_zip
from det_core.train.load_data import loading_run, read_load_data, trial_class_of

from .attributes import find_variables, write_variables
from .build import build_trial
from .context import TFKerasTrialContext
from .sizes import check_weights
from .state import ARRAYS, STATE, read_state
from .trial import TFKerasTrial
from .versions import check_backend, keras
from .weights import MODEL, WEIGHTS, read_weights, weights_file


def load_model_from_checkpoint_path(
    path: str | Path,
    tags: Sequence[str] | None = None,
    *,
    trial_class: type[TFKerasTrial] | None = None,
) -> Any:
    """Return the model of the checkpoint in the directory `path`, compiled, with its weights.

    The trial class is `trial_class`, or else is imported from the checkpoint's `code/`, which
    executes that code. Without either, Keras makes the model from its description, if that names
    only Keras's own classes and registered ones. Then no code of the checkpoint is executed.

    Weights that Determined saved, as HDF5, as TensorFlow's checkpoint or as a saved model, are
    loaded into the model that the trial builds. `tags` is accepted for compatibility and ignored.
    Raises CheckpointError for a directory that holds no checkpoint, or the checkpoint of another
    trial.
    """
    check_backend()
    directory = Path(path)
    file = weights_file(directory)
    if trial_class is None and not (directory / "code").is_dir() and file.name == MODEL:
        return load_described(file)
    facts = read_load_data(directory, trial_class)
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
            f"{directory} does not fit {chosen.__name__}: {error}; give the trial_class of the"
            " checkpoint"
        ) from error
    if (directory / STATE).is_file():
        ranks = read_state(directory).get("attributes", [])
        write_variables(find_variables(model, []), ranks[0] if ranks else {})
    return model


def tensors(path: Path) -> dict[str, Any]:
    """Return the weights and other arrays of a checkpoint, as of optimizers, for `det verify`."""
    file = weights_file(path)
    check_weights(file)
    found: dict[str, Any] = {}
    try:
        check_zip(path / ARRAYS)
        with ExitStack() as stack:
            source: Any = file
            if file.suffix == ".keras":
                source = io.BytesIO(stack.enter_context(zipfile.ZipFile(file)).read(WEIGHTS))
            held = stack.enter_context(h5py.File(source, "r"))
            held.visititems(
                lambda name, item: (
                    found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
                )
            )
            arrays = stack.enter_context(np.load(path / ARRAYS, allow_pickle=False))
            return {"weights": found, "state": {name: arrays[name] for name in arrays.files}}
    # h5py, NumPy and zipfile raise errors of many types for malformed files.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path} cannot be read: {reason}; the checkpoint is damaged"
        ) from error


_CONFIG = "config.json"
_DATA = {"__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__keras_tensor__", "slice"}
_FUNCTIONAL = {
    ("keras.src.models.functional", "Functional"),
    ("keras.src.engine.functional", "Functional"),
}
_UNSAFE = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}
_BASES = (
    *(keras.layers.Layer, keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric),
    *(keras.initializers.Initializer, keras.regularizers.Regularizer, keras.constraints.Constraint),
    *(
        keras.optimizers.schedules.LearningRateSchedule,
        getattr(keras, "DTypePolicy", keras.mixed_precision.Policy),
    ),
)


def load_described(file: Path) -> Any:
    """Return the model of a `.keras` file.

    Raises CheckpointError if the file uses classes that are neither Keras's nor registered.
    """
    way_out = "give the trial_class of the checkpoint"
    check_weights(file)
    try:
        with zipfile.ZipFile(file) as archive:
            described = json.loads(archive.read(_CONFIG))
        if unknown := next(_find_unknown(described), None):
            raise CheckpointError(
                f"{file} cannot be loaded safely: it asks for {unknown}, which is no class of"
                f" Keras; {way_out}"
            )
        return keras.models.load_model(str(file), safe_mode=True)
    except CheckpointError:
        raise
    # Keras and zipfile raise errors of many types for malformed files.
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(f"{file} cannot be loaded safely: {lines[0]}; {way_out}") from error


def _find_unknown(value: Any) -> Iterator[str]:
    """Yield the names in a description that are neither Keras's classes nor registered."""
    if isinstance(value, dict):
        name, module = value.get("class_name"), value.get("module")
        if (
            name is not None
            and name not in _DATA
            and not _is_known(name, module, value.get("registered_name"))
        ):
            yield f"{module}.{name}"
        for inner in value.values():
            yield from _find_unknown(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _find_unknown(inner)


def _is_known(name: Any, module: Any, registered: Any) -> bool:
    if not isinstance(name, str) or name in _UNSAFE:
        return False
    if isinstance(registered, str) and keras.saving.get_registered_object(registered) is not None:
        return True
    if (module, name) in _FUNCTIONAL:
        return True
    if not isinstance(module, str) or module.partition(".")[0] != "keras":
        return False
    found: Any = keras
    for part in (*module.split(".")[1:], *name.split(".")):
        found = getattr(found, part, None)
    return isinstance(found, type) and issubclass(found, _BASES)

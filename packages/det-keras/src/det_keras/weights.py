"""A model's weights in Keras's own formats, which nothing needs to unpickle."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from det_core import CheckpointError, TrialError

from .old_weights import find_old_weights, read_old_weights
from .versions import KERAS_3, KERAS_VERSION, keras

MODEL, WEIGHTS = "model.keras", "model.weights.h5"
_CONFIG, _METADATA = "config.json", "metadata.json"


def write_weights(model: Any, directory: Path) -> None:
    """Write `model.keras`, or `model.weights.h5` where Keras cannot describe the model.

    Both are Keras's formats without the state of optimizers, which the checkpoint holds already.
    """
    weights = directory / WEIGHTS
    see_built(model)
    with _without_optimizers(model):
        model.save_weights(str(weights))
    try:
        config = json.dumps(keras.saving.serialize_keras_object(model))
    except Exception:  # whatever a model's get_config may raise: it is then known by its code alone
        return
    metadata = {"keras_version": KERAS_VERSION, "date_saved": datetime.now(UTC).strftime("%Y-%m-%d@%H:%M:%S")}
    with zipfile.ZipFile(directory / MODEL, "w") as archive:
        archive.writestr(_METADATA, json.dumps(metadata))
        archive.writestr(_CONFIG, config)
        archive.write(weights, WEIGHTS)
    weights.unlink()


def read_weights(model: Any, directory: Path) -> None:
    """Give a model, which is built, the weights of a checkpoint, also of one that Determined saved.

    Raises TrialError where they are another model's.
    """
    file = weights_file(directory)
    see_built(model)
    try:
        with _without_optimizers(model):
            if file.name in (MODEL, WEIGHTS):
                model.load_weights(str(file))
            else:
                read_old_weights(model, file)
    except (ValueError, KeyError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise TrialError(
            f"the checkpoint does not fit the trial's model: {lines[0] if lines else type(error).__name__}"
        ) from error


def see_built(model: Any) -> None:
    """Let Keras 3 save and load a model that was never called, and whose own `train_step` has made its variables."""
    if KERAS_3 and not model.built and model.weights:  # Keras 2 has no weights to ask for yet
        model.built = True


@contextmanager
def _without_optimizers(model: Any) -> Iterator[None]:
    """Let Keras's files pass over the optimizers among a model's attributes, in writing and reading."""

    def nothing(store: Any) -> None:
        pass

    methods = ("save_own_variables", "load_own_variables")
    found = [each for each in vars(model).values() if isinstance(each, keras.optimizers.Optimizer)]
    found += [each.inner_optimizer for each in found if hasattr(each, "inner_optimizer")]
    for each in found:
        for method in methods:
            object.__setattr__(each, method, nothing)
    try:
        yield
    finally:
        for each in found:
            for method in methods:
                object.__delattr__(each, method)


def weights_file(directory: Path) -> Path:
    """Return the file of the weights. Raises CheckpointError where there is none."""
    file = next((directory / name for name in (MODEL, WEIGHTS) if (directory / name).exists()), None)
    file = file or find_old_weights(directory)
    if file is None:
        raise CheckpointError(
            f"{directory} holds neither {MODEL} nor {WEIGHTS}; name the directory of a checkpoint of a TFKerasTrial"
        )
    return file

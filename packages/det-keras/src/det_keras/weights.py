"""A model's weights in Keras's own formats, which nothing needs to unpickle."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from det_core import CheckpointError, TrialError

from .versions import KERAS_VERSION, keras

MODEL, WEIGHTS = "model.keras", "model.weights.h5"
_CONFIG, _METADATA = "config.json", "metadata.json"


def write_weights(model: Any, directory: Path) -> None:
    """Write `model.keras`, or `model.weights.h5` where Keras cannot describe the model.

    `model.keras` is Keras's format without the state of the optimizer, which the checkpoint holds already.
    """
    weights = directory / WEIGHTS
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
    """Give a model, which is built, the weights of a checkpoint. Raises TrialError where they are another model's."""
    file = weights_file(directory)
    try:
        model.load_weights(str(file))
    except (ValueError, KeyError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise TrialError(
            f"the checkpoint does not fit the trial's model: {lines[0] if lines else type(error).__name__}"
        ) from error


def weights_file(directory: Path) -> Path:
    """Return the file of the weights. Raises CheckpointError where there is none."""
    file = next((directory / name for name in (MODEL, WEIGHTS) if (directory / name).exists()), None)
    if file is None:
        raise CheckpointError(
            f"{directory} holds neither {MODEL} nor {WEIGHTS}; name the directory of a checkpoint of a TFKerasTrial"
        )
    return file

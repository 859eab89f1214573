"""Exports models for other programs: a Keras file, or a saved model of TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from det_core import CheckpointError

from .load import load_model_from_checkpoint_path


def keras_file(directory: Path, target: Path) -> None:
    """Write the model as `model.keras`, which `keras.models.load_model` reads.

    The optimizer is left out, because it may be of a class of det.
    """
    model = load_model_from_checkpoint_path(directory)
    model.optimizer = None
    model.save(str(target / "model.keras"))


def saved_model(directory: Path, target: Path) -> None:
    """Write the model for serving: `tf.saved_model.load(target).serve` predicts."""
    model: Any = load_model_from_checkpoint_path(directory)
    if not model.built:
        raise CheckpointError(
            "the model does not know the shape of its inputs: begin it with keras.Input, or"
            " build it"
        )
    model.export(str(target))

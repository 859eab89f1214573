"""Checkpoints as Determined saved them with Keras 2, and the model that is in them.

`python -m tests.det_keras.old_checkpoints DIRECTORY`, with Keras 2, makes those that lie beside
this file for Keras 3 to read.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from det_keras import TFKerasTrial
from det_keras.versions import keras

MADE = Path(__file__).parent / "made_by_keras_2"


class OldTrial(TFKerasTrial):
    """With a model that has a recurrent layer, statistics, and a model inside of it."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def build_model(self) -> Any:
        inputs = keras.Input((4, 3))
        hidden = keras.layers.LSTM(self.context.get_hparam("units"), name="recurrent")(inputs)
        hidden = keras.layers.BatchNormalization(name="statistics")(hidden)
        head = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)]
        )
        model = self.context.wrap_model(keras.Model(inputs, head(hidden)))
        model.compile(keras.optimizers.Adam(), "mse")
        return model

    def build_training_data_loader(self) -> Any:
        return np.zeros((4, 4, 3), "float32"), np.zeros((4, 1), "float32")

    build_validation_data_loader = build_training_data_loader


class Attributes(keras.Model):
    """A model whose layers are attributes, and a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(3)
        self.rest = [keras.layers.Dense(2), keras.layers.Dense(1)]

    def call(self, inputs: Any) -> Any:
        hidden = self.first(inputs)
        for layer in self.rest:
            hidden = layer(hidden)
        return hidden


class OfAttributes(OldTrial):
    """With such a model."""

    def build_model(self) -> Any:
        model = Attributes()
        model.compile(keras.optimizers.Adam(), "mse")
        model(np.zeros((1, 4), "float32"))
        return model


def values(shapes: list[tuple[int, ...]]) -> list[Any]:
    """Return weights of these shapes, each other than all others."""
    starts = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    return [
        np.arange(a, a + np.prod(s), dtype="float32").reshape(s) / 50
        for a, s in zip(starts, shapes, strict=False)
    ]


def filled(model: Any) -> Any:
    """Return a model with those weights."""
    model.set_weights(values([weight.shape for weight in model.get_weights()]))
    return model


FORMATS: dict[str, Callable[[Any, Path], None]] = {
    "h5": lambda model, path: model.save(str(path / "determined-keras-model.h5"), save_format="h5"),
    "weights": lambda model, path: model.save_weights(
        str(path / "determined-keras-model-weights"), save_format="tf"
    ),
    "saved_model": lambda model, path: model.save(str(path / "saved_model"), save_format="tf"),
}


def make(model: Any, name: str, directory: Path) -> None:
    """Write a checkpoint in one of the formats, with what Determined said of its trial."""
    directory.mkdir(parents=True)
    FORMATS[name](model, directory)
    facts = {
        "hparams": {"units": 2},
        "experiment_config": {"entrypoint": "old:OldTrial"},
        "determined_version": "0.13.13",
    }
    (directory / "metadata.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    from det_core.train.load_data import loading_run
    from det_keras.context import TFKerasTrialContext

    root = Path(sys.argv[1])
    run = loading_run("keras", {"units": 2}, None)
    for kind in FORMATS:
        shutil.rmtree(root / kind, ignore_errors=True)
        make(
            filled(OldTrial(TFKerasTrialContext(run, managed=False)).build_model()),
            kind,
            root / kind,
        )
    shutil.rmtree(root / "attributes", ignore_errors=True)
    make(
        filled(OfAttributes(TFKerasTrialContext(run, managed=False)).build_model()),
        "weights",
        root / "attributes",
    )
    (root / "saved_model/saved_model/saved_model.pb").write_bytes(
        b""
    )  # the graph is not read, and large
    for left in ("keras_metadata.pb", "fingerprint.pb"):
        (root / "saved_model/saved_model" / left).unlink(missing_ok=True)

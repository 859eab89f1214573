"""Sentences of unlike length, of which few are of the class that is looked for.

Text vectorisation, a recurrent network.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tests.contract.programs.keras_parts import seed_everything, train
from tests.contract.programs.suite import Outcome

from det_keras import TFKerasTrial
from det_keras.versions import keras

BATCH, RECORDS = 8, 48
TWO_RANKS = (None, "each rank drops out for its part")
QUIET = {"dropout": 0.0}
CLASS_WEIGHT = {0: 0.5, 1: 2.0}
_CALM = [
    "the",
    "river",
    "runs",
    "past",
    "quiet",
    "fields",
    "where",
    "grey",
    "birds",
    "sleep",
    "and",
    "slow",
    "boats",
    "drift",
]
_LOUD = ["storm", "thunder", "breaks", "wild", "hail", "crash", "flood"]


def sentences(count: int, seed: int) -> tuple[Any, Any]:
    """Return sentences, with capitals and commas, and which of them are of bad weather.

    A fifth of them is.
    """
    draw = np.random.default_rng(seed)
    labels = (draw.random(count) < 0.2).astype("float32")
    found = []
    for label in labels:
        words = draw.choice(_CALM, draw.integers(3, 9))
        words[draw.integers(len(words))] = draw.choice(_LOUD if label else _CALM)
        found.append(", ".join(words).capitalize() + ".")
    return np.array(found), labels[:, None]


SENTENCES, HELD_OUT = sentences(RECORDS, 1), sentences(20, 2)


def build(dropout: float) -> Any:
    layers = keras.layers
    words = layers.TextVectorization(max_tokens=24, output_sequence_length=10)
    words.adapt(SENTENCES[0])
    return keras.Sequential(
        [
            keras.Input((), dtype="string"),
            words,
            layers.Embedding(24, 6, mask_zero=True),
            layers.Bidirectional(layers.GRU(4)),
            layers.Dropout(dropout),
            layers.Dense(1, activation="sigmoid", kernel_regularizer="l2"),
        ]
    )


def compiled(model: Any) -> Any:
    optimizer = keras.optimizers.RMSprop(0.02, clipnorm=1.0, momentum=0.5)
    model.compile(
        optimizer, "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")]
    )
    return model


class Trial(TFKerasTrial):
    def build_model(self) -> Any:
        self.context.configure_fit(shuffle=False, class_weight=CLASS_WEIGHT)
        return compiled(
            self.context.wrap_model(build(self.context.get_hparams().get("dropout", 0.2)))
        )

    def build_training_data_loader(self) -> Any:
        return SENTENCES

    def build_validation_data_loader(self) -> Any:
        return HELD_OUT


def plain(dropout: float = 0.2) -> Outcome:
    seed_everything()
    batches, held_out = (
        tf.data.Dataset.from_tensor_slices(data).batch(BATCH) for data in (SENTENCES, HELD_OUT)
    )
    return train(
        compiled(build(dropout)),
        batches,
        held_out,
        epoch=RECORDS // BATCH,
        class_weight=CLASS_WEIGHT,
    )

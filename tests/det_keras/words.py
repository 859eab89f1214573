"""Models with embeddings, as trials and as Keras alone has them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tests.det_keras import models

from det_keras.load import tensors
from det_keras.rng import seed_everything
from det_keras.state import write_state
from det_keras.versions import KERAS_3, keras
from det_keras.weights import write_weights

BATCH, WORDS, PLACES = 4, 12, 5
_DRAW = np.random.default_rng(4)
TEXTS = _DRAW.integers(0, WORDS, (24, PLACES)) * (_DRAW.random((24, PLACES)) < 0.7)
# The second of two ranks has no word in the second batch, and the first has none in the fourth.
TEXTS[6:8] = TEXTS[12:14] = 0
SCORES = _DRAW.normal(size=(24, 1)).astype("float32")


class Bag(keras.Model):  # type: ignore[misc]
    """Adds up the vectors of the words of a text, without zeros, and those of their places.

    Some places are those of all texts, and others those of the longest text of a batch. All words
    are of one kind, which has a vector, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.used_places, self.kinds = (
            keras.layers.Embedding(rows, 3) for rows in (WORDS, PLACES, PLACES, 1)
        )
        self.head = keras.layers.Dense(1)

    def call(self, texts: Any) -> Any:
        at = tf.where(texts > 0)
        words = tf.cast(self.words(tf.gather_nd(texts, at)), tf.float32)
        bag = tf.math.unsorted_segment_sum(words, at[:, 0], tf.shape(texts)[0])
        is_word = tf.cast(texts > 0, tf.float32)
        bag += is_word @ tf.cast(self.places(tf.range(PLACES)), tf.float32)
        kinds = tf.cast(self.kinds(tf.zeros(tf.shape(texts), tf.int32)), tf.float32)
        bag += tf.reduce_sum(is_word[:, :, None] * kinds, axis=1)
        used = is_word[:, : tf.reduce_max(tf.where(texts > 0, tf.range(1, PLACES + 1), 0))]
        used_places = self.used_places(tf.range(tf.shape(used)[1]))
        return self.head(bag + used @ tf.cast(used_places, tf.float32))


def _scaled() -> Any:
    """Return an optimizer whose loss scale grows.

    Nothing overflows, which a half of a batch would do earlier.
    """
    optimizers = keras.optimizers if KERAS_3 else keras.mixed_precision
    return optimizers.LossScaleOptimizer(
        keras.optimizers.RMSprop(0.02), initial_scale=64.0, dynamic_growth_steps=3
    )


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02, momentum=0.5, clipnorm=0.5),
    "centered": lambda: keras.optimizers.RMSprop(0.02, centered=True, clipvalue=0.1),
    "adam": lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.5),
    "adamw": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.1, use_ema=True, ema_momentum=0.8),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "scaled": _scaled,
    "fixed": lambda: keras.optimizers.Adam(0.02),
    "compressed": lambda: keras.optimizers.SGD(0.05),
    "eager": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
}
if KERAS_3:
    OPTIMIZERS["accumulated"] = lambda: keras.optimizers.RMSprop(0.02, momentum=0.5)


def bag(name: str) -> Any:
    before = keras.mixed_precision.global_policy()
    if name == "scaled":
        keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = Bag()
    finally:
        keras.mixed_precision.set_global_policy(before)
    model.compile(OPTIMIZERS[name](), "mse", run_eagerly=name == "eager")
    return model


class Words(models.Line):
    """The hyperparameter `optimizer` names its optimizer.

    With "fixed", the graph knows how many records a batch has.
    """

    training: Any = (TEXTS, SCORES)
    validation: Any = (TEXTS[:4], SCORES[:4])

    def build_model(self) -> Any:
        self.context.configure_fit(shuffle=False, verbose=0)
        return bag(self.context.get_hparam("optimizer"))

    def build_training_data_loader(self) -> Any:
        if self.context.get_hparam("optimizer") != "fixed":
            return self.training
        records = tf.data.Dataset.from_tensor_slices(self.training)
        size = self.context.get_per_slot_batch_size()
        return self.context.wrap_dataset(records).batch(size, drop_remainder=True)


def alone(name: str, length: int) -> dict[str, Any]:
    """Return the weights that Keras alone comes to in so many batches."""
    seed_everything(1)
    model = bag(name)
    if name == "accumulated":
        model.optimizer.gradient_accumulation_steps = 2
    batches = tf.data.Dataset.from_tensor_slices((TEXTS, SCORES)).batch(BATCH).repeat()
    model.fit(batches, steps_per_epoch=length, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        write_weights(model, Path(folder))
        write_state({}, Path(folder))
        return dict(tensors(Path(folder))["weights"])

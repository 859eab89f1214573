"""A convolutional network on digits that are shifted, turned and brightened at random.

Its learning rate follows a cosine after a warm-up; the weights that count are averages over the
steps.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tests.contract.programs.keras_parts import digits, seed_everything, train
from tests.contract.programs.suite import LENGTH, Outcome

from det_keras import TFKerasTrial
from det_keras.versions import keras

BATCH, RECORDS = 8, 48
TWO_RANKS = (None, "each rank shuffles, augments and normalizes its own part")
HELD_OUT = digits(100, 20)


def brightened(image: Any, label: Any) -> Any:
    return image * tf.random.uniform((), 0.8, 1.2), label


def batches(records: Any, size: int) -> Any:
    return records.shuffle(RECORDS, seed=5).map(brightened).batch(size, drop_remainder=True)


def records() -> Any:
    return tf.data.Dataset.from_tensor_slices(digits(0, RECORDS))


def build() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(0.1, 0.1, fill_mode="nearest"),
            layers.RandomRotation(0.05),
            layers.Conv2D(8, 3, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.SpatialDropout2D(0.1),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def compiled(model: Any) -> Any:
    rate = keras.optimizers.schedules.CosineDecay(
        0.001, LENGTH - 5, warmup_target=0.02, warmup_steps=5
    )
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, use_ema=True, ema_momentum=0.9)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class Trial(TFKerasTrial):
    def build_model(self) -> Any:
        return compiled(self.context.wrap_model(build()))

    def build_training_data_loader(self) -> Any:
        return batches(self.context.wrap_dataset(records()), self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> Any:
        return HELD_OUT


def plain() -> Outcome:
    seed_everything()
    held_out = tf.data.Dataset.from_tensor_slices(HELD_OUT).batch(BATCH)
    return train(compiled(build()), batches(records(), BATCH), held_out, epoch=RECORDS // BATCH)

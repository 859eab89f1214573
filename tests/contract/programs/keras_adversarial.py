"""An autoencoder whose codes a critic compares with noise.

It has a `train_step` of its own, with an optimizer for each side.

The critic's optimizer steps at every second batch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tests.contract.programs.keras_parts import digits, seed_everything, train
from tests.contract.programs.suite import LENGTH, Outcome

from det_keras import TFKerasTrial
from det_keras.versions import keras

BATCH, RECORDS = 8, 48
TWO_RANKS = (None, "each rank draws noise for its part")
QUIET = {"drawn": 0.0}
IMAGES, HELD_OUT = digits(0, RECORDS)[0], digits(100, 20)[0]


class Adversarial(keras.Model):  # type: ignore[misc]
    """Codes of four numbers, which shall be distributed as the noise is."""

    def __init__(self, drawn: float) -> None:
        super().__init__()
        self.drawn = drawn
        dense, flat = keras.layers.Dense, keras.layers.Flatten
        self.encoder = keras.Sequential(
            [flat(), dense(16, "relu"), keras.layers.Dropout(0.1 * drawn), dense(4)]
        )
        self.decoder = keras.Sequential(
            [dense(16, "relu"), dense(64, "sigmoid"), keras.layers.Reshape((8, 8, 1))]
        )
        self.critic = keras.Sequential([dense(8, "relu"), dense(1)])
        self.noise = keras.random.SeedGenerator(7)
        self.seen = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="seen"
        )
        self.of_distance, self.of_critic = (
            keras.metrics.Mean("distance"),
            keras.metrics.Mean("critic"),
        )

    def compile(self, builder: Any, critic: Any) -> None:
        super().compile()
        self.steps_builder, self.steps_critic = builder, critic

    @property
    def metrics(self) -> list[Any]:
        return [self.of_distance, self.of_critic]

    def call(self, images: Any, training: bool = False) -> Any:
        codes = self.encoder(images, training=training)
        return self.decoder(codes), self.critic(codes)

    def train_step(self, data: Any) -> Any:
        images, _ = data
        with tf.GradientTape(persistent=True) as tape:
            rebuilt, judged = self(images, training=True)
            noise = self.drawn * keras.random.normal((tf.shape(images)[0], 4), seed=self.noise)
            drawn = self.critic(noise)
            distance = tf.reduce_mean(tf.abs(images - rebuilt))
            building = distance - 0.1 * tf.reduce_mean(judged)
            judging = (
                tf.reduce_mean(judged)
                - tf.reduce_mean(drawn)
                + 0.1 * tf.reduce_mean(judged**2 + drawn**2)
            )
        building_weights = [*self.encoder.trainable_weights, *self.decoder.trainable_weights]
        self.steps_builder.apply_gradients(
            zip(tape.gradient(building, building_weights), building_weights, strict=True)
        )
        weights = self.critic.trainable_weights
        # Behind an odd number of batches the critic's gradients are 0, so that only its momentum
        # goes on.
        share = tf.cast(tf.convert_to_tensor(self.seen) % 2, tf.float32)
        gradients = [share * gradient for gradient in tape.gradient(judging, weights)]
        self.steps_critic.apply_gradients(zip(gradients, weights, strict=True))
        self.seen.assign_add(1)
        self.of_distance.update_state(distance)
        self.of_critic.update_state(judging)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Any) -> Any:
        images, _ = data
        rebuilt, judged = self(images, training=False)
        self.of_distance.update_state(tf.abs(images - rebuilt))
        self.of_critic.update_state(judged)
        return {metric.name: metric.result() for metric in self.metrics}


def compiled(model: Any, wrap: Any = lambda optimizer: optimizer) -> Any:
    falling = keras.optimizers.schedules.ExponentialDecay(0.05, LENGTH, 0.1)
    model.compile(
        wrap(keras.optimizers.Adam(0.01)),
        wrap(keras.optimizers.SGD(falling, momentum=0.9, nesterov=True)),
    )
    return model


class Trial(TFKerasTrial):
    def build_model(self) -> Any:
        self.context.configure_fit(shuffle=False)
        model = self.context.wrap_model(Adversarial(self.context.get_hparams().get("drawn", 1.0)))
        return compiled(model, self.context.wrap_optimizer)

    def build_training_data_loader(self) -> Any:
        return IMAGES, IMAGES

    def build_validation_data_loader(self) -> Any:
        return HELD_OUT, HELD_OUT


def plain(drawn: float = 1.0) -> Outcome:
    seed_everything()
    batches, held_out = (
        tf.data.Dataset.from_tensor_slices((images, images)).batch(BATCH)
        for images in (IMAGES, HELD_OUT)
    )
    return train(compiled(Adversarial(drawn)), batches, held_out, epoch=RECORDS // BATCH)

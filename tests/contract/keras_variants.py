"""The one-weight model in Keras with what real models have.

The same is trained and evaluated by Keras alone.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras.testing import OneVarTrial
from det_keras.versions import KERAS_3, keras
from det_testing import OneVar


def compiled(trial: type, settings: OneVar, length: int) -> Any:
    """Return the model that a trial class trains, as it is before the first batch."""
    inputs = keras.Input((1,))
    normal = (
        keras.layers.BatchNormalization(center=False, scale=False)(inputs)
        if trial is Buffered
        else inputs
    )
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(normal)
    lr: Any = settings.lr
    if trial is Scheduled:
        lr = keras.optimizers.schedules.PolynomialDecay(settings.lr, length, 0.0)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(lr), "mse")
    return model


class Doubling(keras.callbacks.Callback):  # type: ignore[misc]
    """Doubles the weight when training ends."""

    def on_train_end(self, logs: Any = None) -> None:
        weight = self.model.trainable_variables[0]
        weight.assign(2 * weight)


class VariantTrial(OneVarTrial):
    """Trains a model without noise."""

    def build_model(self) -> Any:
        return self.context.wrap_model(
            compiled(type(self), self.settings, self.context.run.length.n)
        )


class Buffered(VariantTrial):
    """Has running statistics, which each rank takes from its own records."""


class Scheduled(VariantTrial):
    """Lets the learning rate fall to 0 at the trial's length."""


class Finishing(VariantTrial):
    """Doubles the weight when training ends."""

    def keras_callbacks(self) -> list[Any]:
        return [Doubling(), *super().keras_callbacks()]


class Streamed(VariantTrial):
    """Reads a stream without a length, of all ranks' records."""

    def build_training_data_loader(self) -> Any:
        numbers = range(self.settings.batches_per_epoch)
        xs = [x for batch in numbers for x in self.settings.records(batch)]
        one = tf.TensorSpec([1], tf.float32)
        stream = tf.data.Dataset.from_generator(
            lambda: (([x], [x]) for x in xs), output_signature=(one, one)
        )
        return self.context.wrap_dataset(stream).batch(self.context.get_per_slot_batch_size())


class Share(keras.utils.Sequence):  # type: ignore[misc]
    """The records of one rank, r-th n-th of each batch, which says that it deals them."""

    det_sharded = True

    def __init__(self, settings: OneVar, ranks: Any) -> None:
        if KERAS_3:
            super().__init__()
        self.settings, self.ranks = settings, ranks

    def __len__(self) -> int:
        return self.settings.batches_per_epoch

    def __getitem__(self, batch: int) -> Any:
        x = np.array(
            self.settings.records(batch)[self.ranks.rank :: self.ranks.size], dtype="float32"
        ).reshape(-1, 1)
        return x, x


class Sharded(VariantTrial):
    """Reads a sequence of its rank's own."""

    def build_training_data_loader(self) -> Any:
        return Share(self.settings, self.context.distributed)


class Stepping(keras.Model):  # type: ignore[misc]
    """Steps by an optimizer that det knows nothing of."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        weights = self.trainable_variables
        self.own.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Bypassing(VariantTrial):
    """Trains by a step of its own, with an optimizer of its own."""

    def build_model(self) -> Any:
        inputs = keras.Input((1,))
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
        model = Stepping(inputs, outputs)
        model.own = keras.optimizers.SGD(self.settings.lr)
        model.own.build(model.trainable_variables)
        model = self.context.wrap_model(model)
        model.compile(keras.optimizers.SGD(self.settings.lr), "mse")
        return model


VARIANTS: dict[str, type | str] = {
    "buffered": Buffered,
    "finishing": Finishing,
    "scheduled": Scheduled,
    "sharded": Sharded,
    "streamed": Streamed,
    "bypassing": Bypassing,
}


class Losses(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the loss of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found.append(logs["loss"])


def evaluate(trial: type, path: Path, settings: OneVar) -> dict[str, float]:
    """Load the weights of a checkpoint, and validate."""
    model = compiled(trial, settings, 1)
    with zipfile.ZipFile(path / "model.keras") as archive, tempfile.TemporaryDirectory() as folder:
        model.load_weights(archive.extract("model.weights.h5", folder))
    return validated(model, settings)


def plain(trial: type, settings: OneVar, batches: int) -> tuple[list[float], dict[str, float]]:
    """Fit with a batch an epoch, so that the loss of each is Keras's own."""
    model, losses = compiled(trial, settings, batches), Losses()
    x = np.array([settings.records(number) for number in range(batches)], dtype="float32").reshape(
        -1, 1
    )
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(settings.global_batch_size)
    callbacks = [losses, Doubling()] if trial is Finishing else [losses]
    model.fit(data.repeat(), steps_per_epoch=1, epochs=batches, callbacks=callbacks, verbose=0)
    return losses.found, validated(model, settings)


def validated(model: Any, settings: OneVar) -> dict[str, float]:
    """Return what the trial reports."""
    x = np.array(settings.validation_records(), dtype="float32").reshape(-1, 1)
    loss = model.evaluate(x, x, batch_size=2, verbose=0, return_dict=True)["loss"]
    return {"val_loss": loss, "weight": float(model.trainable_variables[0].numpy().item())}

"""The conformance kit's one-weight model, in Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from det_keras import TFKerasTrial
from det_keras.versions import KERAS_3, keras
from det_testing import OneVar


class NoisyLabels(keras.Model):  # type: ignore[misc]
    """A model whose labels are made noisy while it trains, with random numbers that Keras can save."""

    noise = 0.0

    def set_noise(self, noise: float) -> None:
        """Draw from a generator that is part of the model."""
        self.noise = noise
        if KERAS_3:
            self.drawn = keras.random.SeedGenerator()
        else:
            self.drawn = tf.random.Generator.from_seed(int(np.random.randint(2**31)))

    def train_step(self, data: Any) -> Any:
        x, y = data[0], data[1]
        if self.noise:
            y = y * (1 + self.noise * (2 * self._uniform(tf.shape(y)) - 1))
        return super().train_step((x, y, *data[2:]))

    def _uniform(self, shape: Any) -> Any:
        return keras.random.uniform(shape, seed=self.drawn) if KERAS_3 else self.drawn.uniform(shape)


class ReportWeight(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds the weight to what a validation reports."""

    def on_test_end(self, logs: Any = None) -> None:
        logs["weight"] = float(self.model.trainable_variables[0].numpy().item())


class OneVarTrial(TFKerasTrial):
    """Trains the one-weight model; `det_testing.OneVar` says what must come of it."""

    steps_per_execution = 1

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.settings = OneVar.of(context.get_hparams())
        context.configure_fit(shuffle=self.settings.shuffle)

    def build_model(self) -> Any:
        inputs = keras.Input((1,))
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
        model = self.context.wrap_model(NoisyLabels(inputs, outputs))
        model.set_noise(self.settings.noise)
        model.compile(keras.optimizers.SGD(self.settings.lr), "mse", steps_per_execution=self.steps_per_execution)
        return model

    def build_training_data_loader(self) -> Any:
        xs = [x for batch in range(self.settings.batches_per_epoch) for x in self.settings.records(batch)]
        return self.data(np.array(xs, dtype="float32").reshape(-1, 1))

    def build_validation_data_loader(self) -> Any:
        x = np.array(self.settings.validation_records(), dtype="float32").reshape(-1, 1)
        return x, x

    def data(self, x: Any) -> Any:
        """Return training data; an heir may return it as another type."""
        return x, x

    def keras_callbacks(self) -> list[Any]:
        return [ReportWeight()]

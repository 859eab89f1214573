"""A layer that draws random numbers for the data and for the model at once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tensorflow as tf

from det_keras.testing import OneVarTrial
from det_keras.versions import KERAS_3, keras


class Augmented(OneVarTrial):
    """Noise in the pipeline, by the layer of the model or by another one."""

    own = False

    def build_model(self) -> Any:
        self.noise = keras.layers.GaussianNoise(0.1, name="augment")
        inputs = keras.Input((1,))
        outputs = keras.layers.Dense(1)(self.noise(inputs))
        model = self.context.wrap_model(keras.Model(inputs, outputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def build_training_data_loader(self) -> Any:
        x, y = super().build_training_data_loader()
        noise = keras.layers.GaussianNoise(0.1) if self.own else self.noise
        records = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, y)))
        return records.batch(2).map(lambda x, y: (noise(x, training=True), y)).prefetch(2)


class Apart(Augmented):
    own = True


@pytest.mark.skipif(not KERAS_3, reason="tested once, as it takes seconds")
def test_layer_shared_by_pipeline_and_model_is_named(runs: Any) -> None:
    """Which of the two draws first depends on how far the pipeline has read ahead."""
    with pytest.warns(UserWarning, match=r"^augment draws random numbers in the training data and"):
        runs(Augmented)(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        runs(Apart)(2)

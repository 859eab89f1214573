"""A model that gets its shape from the first batch, as a trial."""

from __future__ import annotations

from typing import Any

from tests.det_keras import models

from det_keras.versions import keras


class Unbuilt(keras.Model):  # type: ignore[misc]
    """Has no variable before it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.normal = keras.layers.Dense(4), keras.layers.BatchNormalization()
        self.last = keras.layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.last(self.normal(self.first(inputs), training=training))


def unbuilt() -> Any:
    model = Unbuilt()
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


class OneRecord(models.Line):
    """Validates a single record, so that of two ranks one has none."""

    compiled = staticmethod(unbuilt)
    validation: Any = (models.POINTS[:1], models.SUMS[:1])

"""Finds the Keras that TensorFlow uses, version 2 or 3, and checks that it uses TensorFlow."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from det_core import PluginError

# TensorFlow 2.15 has no version of Keras here.
KERAS_VERSION: str = str(getattr(tf.keras, "__version__", tf.__version__))
KERAS_3 = int(KERAS_VERSION.partition(".")[0]) >= 3
# tf.keras does not have all of Keras 3.
keras: Any = importlib.import_module("keras") if KERAS_3 else tf.keras

VERBOSE = "auto" if KERAS_3 else 1
"""The value that callbacks see if `verbose` is not set."""


def check_backend(backend: str | None = None) -> None:
    """Raise PluginError if Keras's backend is not TensorFlow.

    `backend` is by default the current one.
    """
    if backend is None:
        backend = keras.backend.backend() if KERAS_3 else "tensorflow"
    if backend != "tensorflow":
        raise PluginError(
            f"Keras runs on {backend!r} here, and det-keras on TensorFlow only; set"
            " KERAS_BACKEND=tensorflow, or 'backend' in ~/.keras/keras.json"
        )

"""Which Keras this is: the one that TensorFlow calls its own, 2 or 3, on TensorFlow and nothing else."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from det_core import PluginError

KERAS_VERSION: str = str(getattr(tf.keras, "__version__", tf.__version__))  # 2.15 does not say
KERAS_3 = int(KERAS_VERSION.partition(".")[0]) >= 3
keras: Any = importlib.import_module("keras") if KERAS_3 else tf.keras  # tf.keras has not all of Keras 3

VERBOSE = "auto" if KERAS_3 else 1
"""What callbacks are told where `fit` is not."""


def check_backend(backend: str | None = None) -> None:
    """Raise PluginError where Keras computes by something other than TensorFlow; `backend` is by default what it computes by."""
    if backend is None:
        backend = keras.backend.backend() if KERAS_3 else "tensorflow"
    if backend != "tensorflow":
        raise PluginError(
            f"Keras runs on {backend!r} here, and det-keras on TensorFlow only; set KERAS_BACKEND=tensorflow, "
            "or 'backend' in ~/.keras/keras.json"
        )

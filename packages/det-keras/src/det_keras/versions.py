"""Finds the Keras that TensorFlow uses, version 2 or 3, and checks that it uses TensorFlow."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import tensorflow as tf

from det_core import PluginError

_USE_TENSORFLOW = "set KERAS_BACKEND=tensorflow, or 'backend' in ~/.keras/keras.json"


def find_version() -> str:
    """Return the version of TensorFlow's Keras.

    Raises PluginError if Keras, or the package of its backend, cannot be imported.
    """
    try:
        # TensorFlow 2.15 has no version of Keras here.
        return str(getattr(tf.keras, "__version__", tf.__version__))
    # Keras imports its backend. TensorFlow raises an ImportError of its own, without the reason.
    except ImportError as error:
        raise PluginError(_not_imported(error.__context__ or error)) from error


def _not_imported(reason: BaseException) -> str:
    missing = reason.name if isinstance(reason, ModuleNotFoundError) else None
    package = (missing or "").partition(".")[0]
    config = sys.modules.get("keras.src.backend.config")
    # Keras 2 has no such module, and no other backend.
    backend = config.backend() if config else "tensorflow"
    if backend != "tensorflow":
        lacks = f", whose package {package!r} is not installed" if package else ""
        return (
            f"Keras cannot be imported, as its backend is {backend!r}{lacks}; det-keras trains on"
            f" TensorFlow only, which is installed: {_USE_TENSORFLOW}"
        )
    way_out = f"; install it: pip install {package}" if package else ""
    return f"Keras cannot be imported: {reason}{way_out}"


KERAS_VERSION: str = find_version()
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
            f"Keras runs on {backend!r} here, and det-keras on TensorFlow only; {_USE_TENSORFLOW}"
        )

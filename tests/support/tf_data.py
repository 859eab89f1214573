"""Keeps TensorFlow's iterators from waiting for seconds when they are garbage."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any


@cache
def disable_autotune() -> None:
    """Have iterators of this process tune nothing.

    The thread that tunes an iterator sleeps up to a minute, and what deletes the iterator
    sometimes waits for it (seen with TensorFlow 2.21, up to 60 s in a test that takes one).
    """
    if not find_spec("tensorflow"):
        return
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    plain = dataset_ops.DatasetV2._apply_debug_options

    def apply(dataset: Any) -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        return plain(dataset.with_options(options))

    dataset_ops.DatasetV2._apply_debug_options = apply

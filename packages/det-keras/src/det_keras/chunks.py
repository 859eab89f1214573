"""Several batches in one execution, as `steps_per_execution` asks, but never past a boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .versions import KERAS_3


def steps_of(model: Any) -> int:
    """Return the model's `steps_per_execution`."""
    steps = model.steps_per_execution
    return int(steps.numpy()) if hasattr(steps, "numpy") else int(steps or 1)


def make_chunks(model: Any, size: Callable[[], int]) -> Callable[[Any], Any]:
    """Return a function in place of Keras's own `train_function` that trains `size()` batches.

    Keras 3 compiles the number of steps into its own; here it is an argument, so that one compiled function serves every number.
    It returns the logs of the last batch, as Keras's does, and under the key `_MEAN` those that are the mean over the batches.
    """
    step = _counted(model) if not KERAS_3 else model.train_step
    if model.run_eagerly:
        return lambda iterator: _eagerly(step, iterator, size())
    one = tf.function(step, reduce_retracing=True, jit_compile=model.jit_compile)

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]
    def several(iterator: Any, count: Any) -> Any:
        first = one(iterator.get_next())

        def body(done: Any, _: Any, total: Any) -> Any:
            logs = one(iterator.get_next())
            return done + 1, logs, tf.nest.map_structure(_add, total, logs)

        total = tf.nest.map_structure(_real, first)
        _, last, total = tf.while_loop(lambda done, *_: done < count, body, (tf.constant(1), first, total), maximum_iterations=count)
        return last, tf.nest.map_structure(lambda value: value / tf.cast(count, value.dtype), total)

    def train(iterator: Any) -> Any:
        last, mean = several(iterator, tf.constant(size()))
        return Logs(last, mean)

    return train


class Logs(dict[str, Any]):
    """The logs of an execution's last batch; `mean` is over its batches."""

    def __init__(self, last: dict[str, Any], mean: dict[str, Any]) -> None:
        super().__init__(last)
        self.mean = mean


def _eagerly(step: Callable[[Any], Any], iterator: Any, count: int) -> Any:
    logs = [step(next(iterator)) for _ in range(count)]
    means = {name: sum(_real(each[name]) for each in logs) / count for name in logs[-1]}
    return Logs(logs[-1], means)


def _counted(model: Any) -> Callable[[Any], Any]:
    """Return Keras 2's step, which counts the batches that TensorBoard tells time by."""

    def step(data: Any) -> Any:
        logs = model.train_step(data)
        with tf.control_dependencies(tf.nest.flatten(logs)):
            model._train_counter.assign_add(1)
        return logs

    return step


def _real(value: Any) -> Any:
    return tf.cast(value, tf.float32)


def _add(total: Any, value: Any) -> Any:
    return total + _real(value)

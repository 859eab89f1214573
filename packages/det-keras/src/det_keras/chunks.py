"""Trains several batches in one execution (`steps_per_execution`), but never past a boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from det_core import TrialError

from .versions import KERAS_3


def steps_of(model: Any) -> int:
    """Return the model's `steps_per_execution`. Raises TrialError if it is "auto"."""
    steps = model.steps_per_execution
    if isinstance(steps, str) or getattr(model, "autotune_steps_per_execution", False):
        raise TrialError(
            "the model is compiled with steps_per_execution='auto', which changes while it trains;"
            " give a number"
        )
    return int(steps.numpy()) if hasattr(steps, "numpy") else int(steps or 1)


class Chunks:
    """Replaces Keras's `train_function` by one that trains `size()` batches at a time.

    Keras 3 compiles the number of steps into its function. Here the number is an argument, so that
    one compiled function serves every number. It returns the logs of the last batch, as Keras's
    function does. With `means`, `mean` holds the means of the logs over the batches.
    """

    def __init__(self, model: Any, size: Callable[[], int], *, means: bool) -> None:
        step = model.train_step if KERAS_3 else _counted(model)
        self.step = self._several = (
            _eager(step) if model.run_eagerly else _compiled(step, bool(model.jit_compile), means)
        )
        self._size = size
        self.mean: dict[str, Any] = {}

    def __call__(self, iterator: Any) -> Any:
        last, self.mean = self._several(iterator, self._size())
        return last


def _compiled(
    step: Callable[[Any], Any], jit_compile: bool, means: bool
) -> Callable[[Any, int], Any]:
    one = tf.function(step, reduce_retracing=True, jit_compile=jit_compile)

    def counted(logs: Any) -> Any:
        return tf.nest.map_structure(_real, logs) if means else {}

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]
    def several(iterator: Any, count: Any) -> Any:
        def body(done: Any, _: Any, total: Any) -> Any:
            logs = one(iterator.get_next())
            return done + 1, logs, tf.nest.map_structure(tf.add, total, counted(logs))

        first = one(iterator.get_next())
        begin = (tf.constant(1), first, counted(first))
        _, last, total = tf.while_loop(lambda done, *_: done < count, body, begin)
        return last, tf.nest.map_structure(lambda value: value / tf.cast(count, value.dtype), total)

    return lambda iterator, count: several(iterator, tf.constant(count))


def _eager(step: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    def several(iterator: Any, count: int) -> Any:
        logs = [step(next(iterator)) for _ in range(count)]
        return logs[-1], {
            name: sum(_real(each[name]) for each in logs) / count for name in logs[-1]
        }

    return several


def _counted(model: Any) -> Callable[[Any], Any]:
    """Return Keras 2's step, which increments the counter that TensorBoard uses as its step."""

    def step(data: Any) -> Any:
        logs = model.train_step(data)
        with tf.control_dependencies(
            [value for value in tf.nest.flatten(logs) if isinstance(value, tf.Tensor)]
        ):
            model._train_counter.assign_add(1)
        return logs

    return step


def _real(value: Any) -> Any:
    return tf.cast(value, tf.float32)

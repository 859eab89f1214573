"""Training metrics of a period: Keras's metric objects run over it, and what a step returns itself is averaged.

Keras reports means that run from the start of an epoch. Here its metric objects are read, and begun anew, when a report falls
due and, for callbacks, when an epoch ends; nothing is done for a batch. The values between two such cuts are a piece; a period
is the mean of its pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import Communicator

Values = dict[str, float]


@dataclass
class Piece:
    """The value of each metric over a stretch of batches."""

    batches: int
    values: Values


def mean_of(pieces: Iterable[Piece]) -> Values:
    """Return the mean of pieces, each counted by its batches."""
    known = [piece for piece in pieces if piece.batches]
    names = dict.fromkeys(name for piece in known for name in piece.values)
    means = {}
    for name in names:
        terms = [(piece.values[name], piece.batches) for piece in known if name in piece.values]
        total = sum(value * count for value, count in terms)
        means[name] = total / sum(count for _, count in terms) if len(terms) > 1 else terms[0][0]
    return means


class MetricObjects:
    """The metric objects of a model, over all ranks as one process would have them.

    The variables of a metric are added up over the ranks, as `tf.distribute` does: Keras makes them so that this is right.
    """

    def __init__(self, model: Any, distributed: Communicator) -> None:
        self._model, self._distributed = model, distributed
        self._compiled: Callable[[list[Any]], Mapping[str, Any]] | None = None

    def variables(self) -> list[Any]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def state(self) -> list[Any]:
        return [variable.numpy() for variable in self.variables()]

    def restore(self, state: list[Any]) -> None:
        """Take up a state; one of another number of variables belongs to metrics that are not made yet, and is left."""
        variables = self.variables()
        if len(variables) == len(state):
            for variable, value in zip(variables, state, strict=True):
                variable.assign(value)

    def reset(self) -> None:
        self._model.reset_metrics()

    def together(self) -> list[Any]:
        """Return the state of all ranks together, as one process would have it."""
        mine = self.state()
        if self._distributed.size == 1:
            return mine
        states = [state for state in self._distributed.allgather(mine) if len(state) == len(mine)]
        return [np.sum(parts, axis=0, dtype=parts[0].dtype) for parts in zip(*states, strict=True)]

    def take_up(self, state: list[Any]) -> None:
        """Take up the state of all ranks together: on the chief, while the others begin anew."""
        if self._distributed.rank == 0:
            self.restore(state)
        else:
            self.reset()

    def values(self, *, everywhere: bool = True) -> Values:
        """Return the values of this rank, or with `everywhere` of all ranks together; every rank must ask."""
        if not everywhere or self._distributed.size == 1:
            return self._own()
        mine = self.state()
        self.restore(self.together())
        try:
            return self._own()
        finally:
            self.restore(mine)

    def take(self, *, everywhere: bool) -> Values:
        """Return what `values` does, and begin anew; where Keras wrote all of the metrics, in one call of TensorFlow's."""
        state = self.together() if everywhere and self._distributed.size > 1 else []
        if self._compiled is None:
            compile_it = all(map(_is_keras_own, self._model.metrics)) and not self._model.run_eagerly
            self._compiled = tf.function(self._take, autograph=False) if compile_it else self._take
        return flat(self._compiled(state))

    def _take(self, state: list[Any]) -> Mapping[str, Any]:
        if state:
            self.restore(state)
        result: Mapping[str, Any] = self._model.get_metrics_result()
        with tf.control_dependencies([each for each in tf.nest.flatten(result) if tf.is_tensor(each)]):
            self.reset()
        return result

    def _own(self) -> Values:
        return flat(self._model.get_metrics_result())


def _is_keras_own(metric: Any) -> bool:
    """Tell whether a metric, and all that it consists of, is of a class of Keras's, whose methods only change variables."""
    parts = getattr(metric, "metrics", None) or [metric]
    return all(type(part).__module__.partition(".")[0] == "keras" for part in parts)


def flat(values: Mapping[str, Any]) -> Values:
    """Return what holds one number as a number."""
    found = {}
    for name, value in values.items():
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "fiub":
            found[str(name)] = float(array.reshape(()))
    return found


def same(one: float, other: float) -> bool:
    """Tell whether two numbers are the same but for the last digits of 32 bits."""
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))

"""The metric objects of a model: their states over batches, epochs and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import Communicator, TrialError

Values = dict[str, float]
State = list[Any]

_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


class MetricObjects:
    """The metric objects of a model. Over all ranks they give the values that one process would.

    The variables of a metric are added up over ranks and over periods of training, as
    `tf.distribute` does. Keras's metrics are designed for that. A metric of the user may set
    another reduction in `det_reduction`: "sum", "max" or "min".
    """

    def __init__(self, model: Any, distributed: Communicator) -> None:
        self._model, self._distributed = model, distributed
        self._compiled: Callable[[list[Any]], Mapping[str, Any]] | None = None
        # The names of metrics that are not sums and set no reduction.
        self._unknown: set[str] = set()

    def variables(self) -> list[Any]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def own(self) -> list[Any]:
        """Return the metrics of the user's own classes that do not set their reduction."""
        own = (metric for metric in _parts(self._model) if not _is_keras_own(metric))
        return [metric for metric in own if getattr(metric, "det_reduction", None) is None]

    def find_unknown(self, evaluate: Callable[[int], None] | None) -> None:
        """Find the metrics that are not sums.

        `evaluate` evaluates one batch a number of times, which must multiply the state of a sum by
        that number. Raises TrialError if there are several ranks, because such a metric cannot be
        reduced. Every rank must call it.
        """
        found: set[str] = set()
        own = self.own()
        if own and evaluate is not None:
            states = []
            for times in (1, 2):
                evaluate(times)
                states.append(
                    [[variable.numpy() for variable in metric.variables] for metric in own]
                )
            for metric, once, twice in zip(own, *states, strict=True):
                if not all(
                    np.allclose(2 * one, two, 1e-2, equal_nan=True)
                    for one, two in zip(once, twice, strict=True)
                ):
                    found.add(str(metric.name))
        ranks = (
            self._distributed.allgather(sorted(found))
            if self._distributed.size > 1
            else [sorted(found)]
        )
        self._unknown = {name for names in ranks for name in names}
        if self._unknown and self._distributed.size > 1:
            raise TrialError(
                f"the metric {min(self._unknown)!r} is no sum: a batch that it sees twice does not"
                " double its state, so that the states of ranks cannot be added up; set"
                ' det_reduction = "max" or "min" on its class, or keep sums in it'
            )

    def reductions(self) -> list[str | None]:
        """Return the reduction of each variable, or None if it is unknown."""
        ways: dict[int, str | None] = {}
        for metric in _parts(self._model):
            way = getattr(metric, "det_reduction", None if metric.name in self._unknown else "sum")
            if way is not None and way not in _REDUCTIONS:
                raise TrialError(
                    f'det_reduction of the metric {metric.name!r} is {way!r}; give "sum", "max" or'
                    ' "min"'
                )
            ways |= {id(variable): way for variable in metric.variables}
        return [ways.get(id(variable), "sum") for variable in self.variables()]

    def reduced(self, states: Sequence[State]) -> State:
        """Return several states reduced to one.

        A variable without a known reduction gets its last value.
        """
        result: State = []
        if not states:
            return result
        for way, *parts in zip(self.reductions(), *states, strict=False):
            result.append(parts[-1] if way is None else reduce(_REDUCTIONS[way], parts))
        return result

    def state(self) -> list[Any]:
        return [variable.numpy() for variable in self.variables()]

    def restore(self, state: list[Any]) -> None:
        """Restore a state.

        It is ignored if its number of variables differs: its metrics are not made yet.
        """
        variables = self.variables()
        if len(variables) == len(state):
            for variable, value in zip(variables, state, strict=True):
                variable.assign(value)

    def reset(self) -> None:
        self._model.reset_metrics()

    def together(self) -> list[Any]:
        """Return the state of all ranks together, as one process would have it."""
        return self.over_ranks(self.state())

    def over_ranks(self, mine: State) -> State:
        """Return the ranks' states reduced to one. A rank may have an empty state."""
        if self._distributed.size == 1:
            return mine
        states = self._distributed.allgather(mine)
        most = max(map(len, states))
        return self.reduced([state for state in states if len(state) == most]) if most else []

    def of_ranks(self, mine: Mapping[str, State]) -> list[Mapping[str, State]]:
        """Return the states of each rank, or an empty list if there is one rank only.

        Every rank must call it.
        """
        return self._distributed.allgather(mine) if self._distributed.size > 1 else []

    def restore_state(self, state: list[Any] | None) -> None:
        """Restore the state of this rank, or reset the metrics if there is none."""
        if state is not None:
            self.restore(state)
        else:
            self.reset()

    def values(self, *, everywhere: bool = True) -> Values:
        """Return the values of this rank, or with `everywhere` of all ranks together.

        Every rank must call it.
        """
        if not everywhere or self._distributed.size == 1:
            return self._own()
        return self.values_of(self.together())

    def take(self, *, everywhere: bool) -> Values:
        """Return the result of `values`, and reset the metrics.

        If all metrics are Keras's, one call of TensorFlow does both.
        """
        state = self.together() if everywhere and self._distributed.size > 1 else []
        if self._compiled is None:
            compile_it = (
                all(map(_is_keras_own, self._model.metrics)) and not self._model.run_eagerly
            )
            self._compiled = tf.function(self._take, autograph=False) if compile_it else self._take
        return flat(self._compiled(state))

    def _take(self, state: list[Any]) -> Mapping[str, Any]:
        """Read the values and then reset, because a result may be a metric's own variable."""
        if state:
            self.restore(state)
        result: Mapping[str, Any] = self._model.get_metrics_result()
        if tf.executing_eagerly():
            result = flat(result)
        else:
            result = {name: tf.identity(value) for name, value in result.items()}
        with tf.control_dependencies([] if tf.executing_eagerly() else list(result.values())):
            self.reset()
        return result

    def values_of(self, state: State) -> Values:
        """Return the values of a state."""
        mine = self.state()
        self.restore(state)
        try:
            return self._own()
        finally:
            self.restore(mine)

    def _own(self) -> Values:
        return flat(self._model.get_metrics_result())


def _parts(model: Any) -> list[Any]:
    """Return the metrics of a model one by one, also if Keras keeps several in one object."""
    return [
        part for metric in model.metrics for part in getattr(metric, "metrics", None) or [metric]
    ]


def _is_keras_own(metric: Any) -> bool:
    """Return whether a metric and its parts are of Keras's classes.

    Methods of these classes only change variables.
    """
    parts = getattr(metric, "metrics", None) or [metric]
    return all(type(part).__module__.partition(".")[0] == "keras" for part in parts)


def flat(values: Mapping[str, Any]) -> Values:
    """Return the values that hold a single number, as numbers."""
    found = {}
    for name, value in values.items():
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "fiub":
            found[str(name)] = float(array.reshape(()))
    return found


def same(one: float, other: float) -> bool:
    """Return whether two numbers are equal within the precision of 32 bits."""
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-12) or (
        math.isnan(one) and math.isnan(other)
    )

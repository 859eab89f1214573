"""The metric objects of a model: their states over batches, epochs and ranks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial, reduce
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import Communicator, TrialError

from .state import equal, is_plain
from .versions import keras

Values = dict[str, float]
State = list[Any]
Attributes = dict[str, Any]

# The attributes that Keras 2 adds when a metric is used begin so.
_OF_KERAS_2 = ("_self_", "_call_result")
# The class attribute by which a metric sets its reduction.
_REDUCTION = "det_reduction"
# The key of values that were read from a metric. No attribute has this name.
_VALUES = ""

_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


class MetricObjects:
    """The metric objects of a model. Over all ranks they give the values that one process would.

    The states of a metric are added up over ranks and over periods of training, as `tf.distribute`
    does. Keras's metrics are designed for that. A metric of the user may set another reduction in
    `det_reduction`: "sum", "max" or "min". A metric of the user may also keep its state in
    attributes that are numbers, arrays, or lists of them. The sum of lists is one behind the other.
    """

    def __init__(self, model: Any, distributed: Communicator) -> None:
        self._model, self._distributed = model, distributed
        self._compiled: Callable[[list[Any]], Mapping[str, Any]] | None = None
        # The names of metrics that are not sums and set no reduction.
        self._unknown: set[str] = set()
        # The attributes of the user's metrics when they were last reset.
        self._base: list[Attributes] = []
        # The names of metrics that are left out because they are not numbers.
        self._dropped: set[str] = set()

    def variables(self) -> list[Any]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def of_users(self) -> list[Any]:
        """Return the metrics of the user's own classes."""
        return [metric for metric in _parts(self._model) if not _is_keras_own(metric)]

    def find_unknown(
        self,
        evaluate: Callable[[int], None] | None,
        train: Callable[[], Callable[[int], None] | None] = lambda: None,
        *,
        pieces: bool = False,
    ) -> None:
        """Find the metrics that are not sums, and those whose state cannot be found.

        `evaluate` evaluates one batch a number of times, which must multiply the state of a sum by
        that number. `train` returns what does so with a training step, or None. It is used for
        metrics that an evaluation does not update.

        Raises TrialError if there are several ranks, because such a metric cannot be reduced, and
        warns on one rank. Every rank must call it. Unless values are made of `pieces`, only metrics
        without variables are checked, whose state may be in no checkpoint.
        """
        metrics = [each for each in self.of_users() if getattr(each, _REDUCTION, None) is None]
        unseen = {str(each.name): each for each in self.of_users() if not each.variables}
        checked = {str(each.name): each for each in metrics if pieces} | unseen
        if not self._anywhere(checked):
            return
        names = {str(each.name) for each in metrics if pieces}
        moved, found, hidden = self._probe(checked, evaluate)
        unproven = self._anywhere(checked) - self._anywhere(moved | hidden)
        failed: set[str] = set()
        if unproven:
            step = train()
            if step is None:
                failed = {name for name in unproven & names if _state(checked[name])}
            _, later, more = self._probe(checked, step)
            found, hidden = found | (later & unproven), hidden | (more & unproven)
        hidden = self._anywhere(hidden & unseen.keys())
        self._unknown = self._anywhere(found & names) | hidden
        several = self._distributed.size > 1
        problems = [
            *map(_hidden, sorted(hidden)),
            *(_no_sum(name, several) for name in sorted(self._unknown - hidden)),
            *(map(_unproven, sorted(failed)) if several else ()),
        ]
        if several and problems:
            raise TrialError(problems[0])
        for problem in problems:
            warnings.warn(problem, stacklevel=2)

    def _probe(
        self, metrics: Mapping[str, Any], run: Callable[[int], None] | None
    ) -> tuple[set[str], set[str], set[str]]:
        """Return the names of the metrics that `run` updates, and of those that are not sums.

        The last are those whose value changes although no state does that is found.
        """
        if run is None:
            return set(), set(), set()
        states, values = [], []
        for times in (0, 1, 2):
            self.reset()
            if times:
                run(times)
            states.append({name: _state(metric) for name, metric in metrics.items()})
            values.append({name: _value(metric) for name, metric in metrics.items()})
        base, once, twice = states
        moved = {name for name in metrics if not equal(base[name], once[name])}
        no_sums = {
            name
            for name in metrics
            if not all(
                _doubles(
                    base[name].get(key) if isinstance(key, str) else None,
                    value,
                    twice[name].get(key),
                )
                for key, value in once[name].items()
            )
        }
        shown = {name for name in metrics if values[0][name] != values[1][name]}
        return moved, no_sums, shown - moved

    def _anywhere(self, names: Iterable[str]) -> set[str]:
        """Return the names that any rank gives. Every rank must call it."""
        mine = sorted(names)
        ranks = self._distributed.allgather(mine) if self._distributed.size > 1 else [mine]
        return {name for each in ranks for name in each}

    def _way(self, metric: Any) -> str | None:
        """Return the reduction of a metric, or None if it is unknown."""
        unknown = None if metric.name in self._unknown else "sum"
        way: str | None = getattr(metric, _REDUCTION, unknown)
        if way is not None and way not in _REDUCTIONS:
            raise TrialError(
                f'det_reduction of the metric {metric.name!r} is {way!r}; give "sum", "max" or'
                ' "min"'
            )
        return way

    def reductions(self) -> list[str | None]:
        """Return the reduction of each variable, or None if it is unknown."""
        ways: dict[int, str | None] = {}
        for metric in _parts(self._model):
            way = self._way(metric)
            ways |= {id(variable): way for variable in metric.variables}
        return [ways.get(id(variable), "sum") for variable in self.variables()]

    def reduced(self, states: Sequence[State]) -> State:
        """Return several states reduced to one.

        A metric without a known reduction gets its last state.
        """
        if len(states) < 2:
            return [*states[0]] if states else []
        ways = self.reductions()
        result = [
            parts[-1] if way is None else reduce(_REDUCTIONS[way], parts)
            for way, *parts in zip(ways, *states, strict=False)
        ]
        users = self.of_users()
        bases = self._base if len(self._base) == len(users) else [{} for _ in users]
        pieces = zip(users, bases, *(state[len(ways) :] for state in states), strict=False)
        return [*result, *(_reduced(self._way(each), base, parts) for each, base, *parts in pieces)]

    def state(self) -> State:
        """Return the values of variables, and then the attributes of each of the user's metrics."""
        return [
            *(variable.numpy() for variable in self.variables()),
            *map(_attributes, self.of_users()),
        ]

    def read_state(self) -> State:
        """Return the state with the values of the user's metrics, which may have other state."""
        state, users = self.state(), self.of_users()
        values = self._own() if users else {}
        for metric, attributes in zip(users, state[len(state) - len(users) :], strict=True):
            attributes[_VALUES] = {
                name: value
                for name, value in values.items()
                if name == metric.name or name.endswith(f"_{metric.name}")
            }
        return state

    def restore(self, state: State) -> None:
        """Restore a state.

        It is ignored if its number of variables differs: its metrics are not made yet.
        """
        variables, users = self.variables(), self.of_users()
        # Old checkpoints have no attributes.
        if len(state) in (len(variables), len(variables) + len(users)):
            for variable, value in zip(variables, state, strict=False):
                variable.assign(value)
            for metric, attributes in zip(users, state[len(variables) :], strict=False):
                _set_attributes(metric, attributes)

    def reset(self) -> None:
        self._model.reset_metrics()
        self._base = [_attributes(metric) for metric in self.of_users()]

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
        return self.numbers(self._compiled(state))

    def _take(self, state: list[Any]) -> Mapping[str, Any]:
        """Read the values and then reset, because a result may be a metric's own variable."""
        if state:
            self.restore(state)
        result: Mapping[str, Any] = self._model.get_metrics_result()
        if tf.executing_eagerly():
            result = self.numbers(result)
        else:
            result = {name: tf.identity(value) for name, value in result.items()}
        with tf.control_dependencies([] if tf.executing_eagerly() else list(result.values())):
            self.reset()
        return result

    def values_of(self, state: State) -> Values:
        """Return the values of a state."""
        mine = self.state()
        self.restore(state)
        read = [each.get(_VALUES, {}) for each in state if isinstance(each, dict)]
        try:
            return self._own() | {name: value for each in read for name, value in each.items()}
        finally:
            self.restore(mine)

    def _own(self) -> Values:
        return self.numbers(self._model.get_metrics_result())

    def numbers(self, values: Mapping[str, Any]) -> Values:
        """Return the values that hold a single number, as numbers.

        Warn once for each name of the others, which are in no report.
        """
        found = {}
        for name, value in values.items():
            number = _number(value)
            if number is not None:
                found[str(name)] = number
            elif name not in self._dropped:
                self._dropped.add(name)
                what = (
                    f"a {type(value).__name__} of shape {tuple(value.shape)}"
                    if hasattr(value, "shape")
                    else f"of type {type(value).__name__}"
                )
                warnings.warn(
                    f"the metric {name!r} is {what}, and is left out of the reports; return a"
                    " single number",
                    stacklevel=2,
                )
        return found


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


def _hidden(name: str) -> str:
    return (
        f"the metric {name!r} has no state that det finds, so that its value would not cover what"
        " other ranks, or the run before a restart, have counted; keep its state in variables"
        " (add_weight), or in numbers, arrays or lists in its attributes"
    )


def _no_sum(name: str, several: bool) -> str:
    cannot = (
        "the states of ranks cannot be added up"
        if several
        else "an epoch has its value since the last report in it, and a report its value since the"
        " last end of an epoch in it"
    )
    return (
        f"the metric {name!r} is no sum: a batch that it sees twice does not double its state, so"
        f' that {cannot}; set det_reduction = "max" or "min" on its class, or keep sums in it'
    )


def _unproven(name: str) -> str:
    return (
        f"nothing shows that the state of the metric {name!r} is a sum, because only an eager"
        ' train_step updates it; set det_reduction on its class to "sum", "max" or "min"'
    )


class _Bare(keras.metrics.Metric):  # type: ignore[misc]
    """A metric with the attributes that Keras itself gives each one."""

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        pass

    def result(self) -> Any:
        return 0.0


@cache
def _of_keras() -> frozenset[str]:
    return frozenset(vars(_Bare()))


def _attributes(metric: Any) -> Attributes:
    """Return copies of the attributes that a user's metric may keep its state in."""
    found = {
        name: _copied(value)
        for name, value in vars(metric).items()
        if name not in _of_keras() and not name.startswith(_OF_KERAS_2)
    }
    return {name: value for name, value in found.items() if is_plain(value)}


def _set_attributes(metric: Any, attributes: Attributes) -> None:
    """Set the attributes that differ. Those that hold anything else now are left alone."""
    now = _attributes(metric)
    for name, value in attributes.items():
        if name in now and not equal(now[name], value):
            setattr(metric, name, _copied(value))


def _copied(value: Any) -> Any:
    """Return a copy of a value with plain dicts, lists and tuples in place of Keras's own kinds."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if type(value) is tuple:
        return tuple(map(_copied, value))
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _state(metric: Any) -> dict[Any, Any]:
    """Return the variables of a metric by place, and its attributes by name."""
    variables = {place: each.numpy() for place, each in enumerate(metric.variables)}
    return variables | _attributes(metric)


def _value(metric: Any) -> Any:
    """Return the value of a metric as bytes, or None if it has none."""
    # A user's metric may raise anything before its first batch.
    with suppress(Exception):
        return [np.asarray(each).tobytes() for each in tf.nest.flatten(metric.result())]
    return None


def _number(value: Any) -> float | None:
    """Return the single number that a value holds, or None."""
    try:
        # NumPy cannot convert a tensor of a type that TensorFlow adds, such as bfloat16.
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        if array.size == 1 and array.dtype.kind in "fiubV":
            return float(array.reshape(()))
    # Lists of lists of several lengths are no array.
    except (TypeError, ValueError):
        pass
    return None


def _is_number(value: Any) -> bool:
    # NumPy gives types that TensorFlow adds, such as bfloat16, the kind V.
    return (
        not isinstance(value, (str, list, tuple, dict)) and np.asarray(value).dtype.kind in "fiucV"
    )


def _doubles(base: Any, once: Any, twice: Any) -> bool:
    """Return whether a value has the same difference from `base` twice."""
    if isinstance(base, list) and isinstance(once, list) and isinstance(twice, list):
        return len(twice) - len(once) == len(once) - len(base)
    if not (_is_number(once) and _is_number(twice) and np.shape(once) == np.shape(twice)):
        return equal(base, once) and equal(once, twice)
    begin = base if base is not None and np.shape(base) == np.shape(once) else 0 * once
    return np.allclose(2 * once - begin, twice, 1e-2, equal_nan=True)


def _reduced(way: str | None, base: Attributes, parts: Sequence[Attributes]) -> Attributes:
    """Return the attributes of one metric, reduced from several states since `base`."""
    names = dict.fromkeys(name for part in parts for name in part if name != _VALUES)
    result = {}
    for name in names:
        values = [part[name] for part in parts if name in part]
        begin = base.get(name)
        changed = [value for value in values if not equal(value, begin)]
        result[name] = reduce(partial(_joined, way, begin), changed) if changed else begin
    if way is None and _VALUES in parts[-1]:
        result[_VALUES] = parts[-1][_VALUES]
    return result


def _joined(way: str | None, begin: Any, one: Any, other: Any) -> Any:
    """Return two values of an attribute reduced to one, or the last if that is impossible."""
    if way is None:
        return other
    if isinstance(begin, list) and isinstance(one, list) and isinstance(other, list):
        return [*one, *other[len(begin) :]]
    if not (_is_number(one) and _is_number(other) and np.shape(one) == np.shape(other)):
        return other
    if way == "sum":
        return one + other - begin if begin is not None else one + other
    found = _REDUCTIONS[way](one, other)
    return found.item() if isinstance(one, (int, float)) else found


def same(one: float, other: float) -> bool:
    """Return whether two numbers are equal within the precision of 32 bits."""
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-12) or (
        math.isnan(one) and math.isnan(other)
    )

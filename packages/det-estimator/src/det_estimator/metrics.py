"""Metrics of a validation that Python reduces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import TrialError

_MISSING = object()


class MetricReducer(ABC):
    """Reduces a metric over the batches of each rank, and then over the ranks.

    Each validation has a new one.
    """

    @abstractmethod
    def accumulate(self, metric: Any) -> Any:
        """Add the values of one batch, and return the result of this rank so far."""

    @abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, computed from each rank's last result of `accumulate`."""


class CustomMetric:
    """A metric of `make_metric`.

    `mine` is this rank's part, and `of_ranks` the gathered parts of all.
    """

    def __init__(self, reducer: Callable[[list[Any]], Any] | MetricReducer, dtype: Any) -> None:
        if not callable(reducer) and not isinstance(reducer, MetricReducer):
            raise TrialError(
                f"make_metric got {reducer!r} as its reducer; give a function or a MetricReducer"
            )
        self._reducer, self._dtype = reducer, np.dtype(dtype)
        self.mine: Any = None if isinstance(reducer, MetricReducer) else []
        self.of_ranks: list[Any] | None = None

    def ops(self, metric: Any) -> tuple[Any, Any]:
        """Return the value and the update, in the current graph."""
        flat = tf.nest.flatten(metric)
        dtype = tf.as_dtype(self._dtype)

        def update(*values: Any) -> Any:
            self._take(tf.nest.pack_sequence_as(metric, list(values)))
            return np.zeros((), self._dtype)

        updated = tf.compat.v1.py_func(update, flat, dtype)
        value = tf.compat.v1.py_func(self._value, [], dtype)
        return value, updated

    def _take(self, values: Any) -> None:
        if isinstance(self._reducer, MetricReducer):
            self.mine = self._reducer.accumulate(values)
        else:
            self.mine.append(values)

    def _value(self) -> Any:
        parts = [self.mine] if self.of_ranks is None else self.of_ranks
        if isinstance(self._reducer, MetricReducer):
            return np.asarray(self._reducer.cross_slot_reduce(parts), self._dtype)
        batches = chain.from_iterable(zip_longest(*parts, fillvalue=_MISSING))
        return np.asarray(
            self._reducer([batch for batch in batches if batch is not _MISSING]), self._dtype
        )

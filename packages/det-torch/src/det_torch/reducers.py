"""Reducers: from the metrics of batches and ranks to one value."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch

from det_core import TrialError


class Reducer(enum.Enum):
    """How a validation metric's values for batches become one; AVG is unweighted over batches."""

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(ABC):
    """A metric that is gathered while batches go by: define an `update` of your own, and call it in the trial."""

    @abstractmethod
    def reset(self) -> None:
        """Forget what was gathered; called before each training report and each validation."""

    @abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return what this rank gathered, in a form that can be sent."""

    @abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, or a dict of metrics, from what all ranks gathered."""


class FunctionReducer(MetricReducer):
    """Gathers values for a function, which gets those of all ranks in the order of the data."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._values: list[Any] = []

    def update(self, value: Any) -> None:
        """Add a value; once for each batch keeps the order of the data over ranks."""
        self._values.append(value.detach().cpu() if isinstance(value, torch.Tensor) else value)

    def reset(self) -> None:
        self._values = []

    def per_slot_reduce(self) -> list[Any]:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        missing = object()
        dealt = zip_longest(*per_slot_metrics, fillvalue=missing)
        return self._function([value for values in dealt for value in values if value is not missing])


class Wrapped:
    """A reducer with the name of its metric and the times at which it counts."""

    def __init__(self, reducer: MetricReducer, name: str | None, for_training: bool, for_validation: bool) -> None:
        self.reducer, self.name = reducer, name
        self.for_training, self.for_validation = for_training, for_validation

    def result(self, gathered: list[Any]) -> dict[str, Any]:
        """Return the metrics by name from what all ranks gathered."""
        value = self._call("cross_slot_reduce", gathered)
        if self.name is None:
            if not isinstance(value, dict):
                raise TrialError(
                    f"{type(self.reducer).__name__} returned {type(value).__name__} and has no name; give wrap_reducer a "
                    "name, or return a dict of metrics"
                )
            return value
        if isinstance(value, dict):
            raise TrialError(f"the reducer {self.name!r} returned a dict; wrap it without a name, or return one value")
        return {self.name: value}

    def gather(self) -> Any:
        return self._call("per_slot_reduce")

    def reset(self) -> None:
        self._call("reset")

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.reducer, method)(*arguments)
        except Exception as error:
            raise ValueError(
                f'reducer of type {type(self.reducer).__name__} for name="{self.name}" failed in a call to {method}'
            ) from error


class ReducerSet:
    """The reducers of a trial."""

    def __init__(self) -> None:
        self._wrapped: list[Wrapped] = []

    def add(
        self, reducer: Callable[..., Any] | MetricReducer, name: str | None, for_training: bool, for_validation: bool
    ) -> MetricReducer:
        """Take in a reducer or a function; return what the trial updates. Raises TrialError for what is neither."""
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer) or isinstance(reducer, type):
                raise TrialError(f"wrap_reducer got {reducer!r}; give a function or an instance of MetricReducer")
            reducer = FunctionReducer(reducer)
        if any(wrapped.reducer is reducer for wrapped in self._wrapped):
            raise TrialError(f"{type(reducer).__name__} is wrapped already; wrap a reducer once")
        self._wrapped.append(Wrapped(reducer, name, for_training, for_validation))
        return reducer

    def of(self, *, training: bool) -> list[Wrapped]:
        return [each for each in self._wrapped if (each.for_training if training else each.for_validation)]

    def reset(self, *, training: bool) -> None:
        for wrapped in self.of(training=training):
            wrapped.reset()

    def metrics(self, allgather: Callable[[Any], list[Any]], *, training: bool) -> dict[str, Any]:
        """Reduce over all ranks, in one exchange."""
        chosen = self.of(training=training)
        if not chosen:
            return {}
        everyone = allgather([wrapped.gather() for wrapped in chosen])
        metrics: dict[str, Any] = {}
        for index, wrapped in enumerate(chosen):
            metrics.update(wrapped.result([rank[index] for rank in everyone]))
        return metrics


def reduce_batches(values: Sequence[Any], reducer: Reducer) -> Any:
    """Reduce one metric's values for the batches of this rank, on the device where they are."""
    tensors = torch.stack(
        [value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(value) for value in values]
    )
    if reducer is Reducer.SUM:
        return tensors.sum(dim=0)
    if reducer is Reducer.MAX:
        return tensors.amax(dim=0)
    if reducer is Reducer.MIN:
        return tensors.amin(dim=0)
    return tensors.to(torch.float64 if tensors.device.type != "mps" else torch.float32).mean(dim=0)


def reduce_ranks(values: Sequence[Any], batches: Sequence[int], reducer: Reducer) -> Any:
    """Reduce the ranks' values; AVG weighs each by its number of batches."""
    given = [(value, count) for value, count in zip(values, batches, strict=True) if count]
    numbers = [value for value, _ in given]
    if reducer is Reducer.SUM:
        return sum(numbers[1:], start=numbers[0])
    if reducer is Reducer.MAX:
        return max(numbers)
    if reducer is Reducer.MIN:
        return min(numbers)
    total = sum(count for _, count in given)
    return sum((value * count for value, count in given[1:]), start=given[0][0] * given[0][1]) / total

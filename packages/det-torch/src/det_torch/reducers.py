"""Reducers that trials define: metrics that are gathered batch by batch and reduced
over all ranks.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from det_core import DetError, InvalidHP, TrialError

from .state import is_plain

_ARRAY, _NUMBER, _DEVICE = "__numpy_array__", "__numpy_number__", "__tensor_on__"


class MetricReducer(ABC):
    """A metric that is gathered batch by batch. Define an `update` method and call it in the trial.

    A checkpoint holds what was gathered since the last report: the attributes that are numbers,
    text, tensors, arrays and containers of them. A reducer with `state_dict` and `load_state_dict`
    determines its state itself.
    """

    @abstractmethod
    def reset(self) -> None:
        """Clear what was gathered. Called before each training report and each validation."""

    @abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return what this rank gathered, in a form that can be sent to other ranks."""

    @abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, or a dict of metrics, from the values of all ranks."""


class FunctionReducer(MetricReducer):
    """Gathers values for a function. It gets those of all ranks in the order of the data."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._values: list[Any] = []

    def update(self, value: Any) -> None:
        """Add a value. One call for each batch keeps the order of the data over ranks."""
        self._values.append(_copied(value))

    def reset(self) -> None:
        self._values = []

    def per_slot_reduce(self) -> list[Any]:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        missing = object()
        dealt = zip_longest(*per_slot_metrics, fillvalue=missing)
        return self._function(
            [value for values in dealt for value in values if value is not missing]
        )

    def state_dict(self) -> dict[str, Any]:
        return {"values": self._values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = list(state["values"])


class Wrapped:
    """A reducer with the name of its metric and the reports that include it."""

    def __init__(
        self, reducer: MetricReducer, name: str | None, for_training: bool, for_validation: bool
    ) -> None:
        self.reducer, self.name = reducer, name
        self.for_training, self.for_validation = for_training, for_validation

    def result(self, gathered: list[Any]) -> dict[str, Any]:
        """Return the metrics by name, from what all ranks gathered."""
        value = self._call("cross_slot_reduce", gathered)
        if self.name is None:
            if not isinstance(value, dict):
                raise TrialError(
                    f"{type(self.reducer).__name__} returned {type(value).__name__} and has no"
                    " name; give wrap_reducer a name, or return a dict of metrics"
                )
            return value
        if isinstance(value, dict):
            raise TrialError(
                f"the reducer {self.name!r} returned a dict; wrap it without a name, or return one"
                " value"
            )
        return {self.name: value}

    def gather(self) -> Any:
        return self._call("per_slot_reduce")

    def reset(self) -> None:
        self._call("reset")

    def state(self) -> Any:
        """Return what was gathered as plain data, and the names of values that a checkpoint cannot
        hold.
        """
        give = getattr(self.reducer, "state_dict", None)
        own = callable(give) and hasattr(self.reducer, "load_state_dict")
        kept: dict[str, Any] = {}
        lost: list[str] = []
        for name, value in ({"state_dict()": give()} if own else vars(self.reducer)).items():  # type: ignore[misc]
            try:
                kept[name] = pack(_listed(value))
            except TypeError:
                lost.append(name)
        return {"own": own, "kept": kept, "lost": lost}

    def restore(self, state: Any) -> list[str]:
        """Restore what was gathered. Returns the names of lost values."""
        kept: dict[str, Any] = unpack(state["kept"])
        if state["own"] and kept:
            self.reducer.load_state_dict(kept["state_dict()"])  # type: ignore[attr-defined]
        elif not state["own"]:
            for name, value in kept.items():
                setattr(self.reducer, name, _refilled(getattr(self.reducer, name, None), value))
        return list(state["lost"])

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.reducer, method)(*arguments)
        except (InvalidHP, DetError):
            raise
        except Exception as error:
            if (
                isinstance(self.reducer, FunctionReducer)
                and method == "cross_slot_reduce"
                and not any(*arguments)
            ):
                raise TrialError(
                    f"the function of the reducer {self.name!r} failed on an empty list"
                    f" ({type(error).__name__}: {error}), as update() gave it no value since the"
                    " last report; update it in train_batch and in evaluate_batch, or wrap it with"
                    " for_training=False or for_validation=False"
                ) from error
            raise ValueError(
                f'reducer of type {type(self.reducer).__name__} for name="{self.name}" failed in a'
                f" call to {method}"
            ) from error


class ReducerSet:
    """The reducers of a trial."""

    def __init__(self) -> None:
        self._wrapped: list[Wrapped] = []

    def __bool__(self) -> bool:
        return bool(self._wrapped)

    def __iter__(self) -> Iterator[MetricReducer]:
        return (wrapped.reducer for wrapped in self._wrapped)

    def add(
        self,
        reducer: Callable[..., Any] | MetricReducer,
        name: str | None,
        for_training: bool,
        for_validation: bool,
    ) -> MetricReducer:
        """Register a reducer or a function.

        Returns the reducer that the trial updates. Raises TrialError for another object.
        """
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer) or (
                isinstance(reducer, type) and issubclass(reducer, MetricReducer)
            ):
                raise TrialError(
                    f"wrap_reducer got {reducer!r}; give a function or an instance of MetricReducer"
                )
            reducer = FunctionReducer(reducer)
        if any(wrapped.reducer is reducer for wrapped in self._wrapped):
            raise TrialError(f"{type(reducer).__name__} is wrapped already; wrap a reducer once")
        self._wrapped.append(Wrapped(reducer, name, for_training, for_validation))
        return reducer

    @contextmanager
    def held(self) -> Iterator[None]:
        """Discard the values that are gathered in the body."""
        before = [copy.deepcopy(vars(wrapped.reducer)) for wrapped in self._wrapped]
        yield
        for wrapped, gathered in zip(self._wrapped, before, strict=True):
            vars(wrapped.reducer).clear()
            vars(wrapped.reducer).update(gathered)

    def reset(self) -> None:
        """Reset all reducers. A reducer of training and validation must not mix their values."""
        for wrapped in self._wrapped:
            wrapped.reset()

    def metrics(self, allgather: Callable[[Any], list[Any]], *, training: bool) -> dict[str, Any]:
        """Return the metrics of all ranks, with one exchange."""
        chosen = [
            each
            for each in self._wrapped
            if (each.for_training if training else each.for_validation)
        ]
        if not chosen:
            return {}
        everyone = allgather([wrapped.gather() for wrapped in chosen])
        metrics: dict[str, Any] = {}
        for index, wrapped in enumerate(chosen):
            metrics.update(wrapped.result([rank[index] for rank in everyone]))
        return metrics

    def state(self, allgather: Callable[[Any], list[Any]]) -> list[Any]:
        """Return what the training reducers of every rank gathered, by rank."""
        return allgather([wrapped.state() for wrapped in self._wrapped if wrapped.for_training])

    def restore(self, states: list[Any], rank: int, size: int) -> None:
        """Restore what this rank's training reducers gathered. Warns of lost values."""
        chosen = [wrapped for wrapped in self._wrapped if wrapped.for_training]
        mine = (
            states[rank]
            if len(states) == size and len(states[rank]) == len(chosen)
            else [None] * len(chosen)
        )
        for wrapped, state in zip(chosen, mine, strict=True):
            lost = ["what it gathered"] if state is None else wrapped.restore(state)
            if lost:
                warnings.warn(
                    f"{type(wrapped.reducer).__name__} (name={wrapped.name!r}) goes on in the"
                    f" middle of a training report without {', '.join(lost)}; a state_dict() of"
                    " plain data and a load_state_dict() would keep it",
                    stacklevel=2,
                )


def _listed(value: Any) -> Any:
    """Return the contents of a container of another kind, such as a defaultdict or a set, in a dict
    or a list.
    """
    if isinstance(value, dict):
        return dict(value)
    return list(value) if isinstance(value, set | deque) else value


def _refilled(container: Any, value: Any) -> Any:
    """Return the values in the reducer's own container, if it made one of a special kind."""
    if isinstance(container, dict | set | deque) and type(container) is not dict:
        container.clear()
        (container.extend if isinstance(container, deque) else container.update)(value)
        return container
    return value


def _copied(value: Any) -> Any:
    """Return a copy that the next batch cannot change, on the CPU and without a graph."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(inner) for inner in value)
    return value


def pack(value: Any) -> Any:
    """Return plain data for what a reducer gathered, for a checkpoint.

    The value may consist of containers, tensors, numbers, text and numeric arrays. Raises TypeError
    for other objects.
    """
    if type(value) is dict:
        return {_plain(key): pack(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(pack(inner) for inner in value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {_ARRAY: torch.from_numpy(value.copy())}
    if isinstance(value, np.number | np.bool_):
        return {_NUMBER: torch.from_numpy(np.array(value))}
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return {_DEVICE: str(value.device), "tensor": value}
    return _plain(value)


def unpack(value: Any) -> Any:
    """Return the value that `pack` got."""
    if type(value) is dict:
        if set(value) == {_ARRAY}:
            return value[_ARRAY].numpy()
        if set(value) == {_NUMBER}:
            return value[_NUMBER].numpy()[()]
        if set(value) == {_DEVICE, "tensor"}:
            return value["tensor"].to(value[_DEVICE])
        return {key: unpack(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unpack(inner) for inner in value)
    return value


def _plain(value: Any) -> Any:
    if not is_plain(value):
        raise TypeError(f"{type(value).__name__} is no plain data")
    return value

"""Reduces the validation metrics of batches and ranks to one value each."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch

from det_core import MetricError, number


class Reducer(enum.Enum):
    """How a validation metric is reduced over batches. AVG weighs all batches equally."""

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


def reduce_batches(name: str, values: Sequence[Any], reducer: Reducer) -> torch.Tensor:
    """Reduce one metric's values for the batches of this rank, element by element.

    Returns a tensor on the CPU.

    Means and sums are computed in double precision. Raises MetricError, which names the metric, for
    values that are not numbers.
    """
    return _reduced(_stack(name, values), reducer)


def reduce_ranks(values: Sequence[torch.Tensor], batches: Sequence[int], reducer: Reducer) -> Any:
    """Reduce the ranks' values to a number or a list. AVG weighs each by its number of batches."""
    if len(values) == 1:
        return _plain(values[0])
    if reducer is not Reducer.AVG:
        return _plain(_reduced(torch.stack(list(values)), reducer))
    weighted = [value * count for value, count in zip(values, batches, strict=True)]
    return _plain(torch.stack(weighted).sum(dim=0) / sum(batches))


def _reduced(values: torch.Tensor, reducer: Reducer) -> torch.Tensor:
    if reducer is Reducer.MAX:
        return values.amax(dim=0)
    if reducer is Reducer.MIN:
        return values.amin(dim=0)
    if values.is_floating_point() or reducer is Reducer.AVG:
        values = values.double()
    return values.sum(dim=0) if reducer is Reducer.SUM else values.mean(dim=0)


def _stack(name: str, values: Sequence[Any]) -> torch.Tensor:
    """Return the values as one tensor on the CPU, with one transfer if they are on one device."""
    try:
        tensors = [_tensor(value) for value in values]
        if len({tensor.device for tensor in tensors}) > 1:
            tensors = [tensor.cpu() for tensor in tensors]
        stacked = torch.stack(tensors).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _mistake(name, values) from error
    if stacked.is_complex():
        raise _mistake(name, values)
    return stacked


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach()
    return torch.as_tensor(value, dtype=torch.float64 if _holds_floats(value) else None)


def _holds_floats(value: Any) -> bool:
    """Return whether a value is a number of Python in double precision, or a list with one."""
    if isinstance(value, (list, tuple)):
        return any(map(_holds_floats, value))
    return isinstance(value, float)


def _mistake(name: str, values: Sequence[Any]) -> MetricError:
    """Return the error that says why the values cannot be reduced."""
    shapes = list(dict.fromkeys(tuple(getattr(value, "shape", ())) for value in values))
    if len(shapes) > 1:
        return MetricError(
            f"metric {name!r} has the shapes {' and '.join(map(str, shapes[:3]))} in different"
            " batches; return a number, or arrays of one shape"
        )
    for value in values:
        try:
            number(name, value)
        except MetricError as error:
            return error
    return MetricError(
        f"metric {name!r} is {values[0]!r:.60}; return a number, or a tensor or array of numbers"
    )


def _plain(value: torch.Tensor) -> Any:
    return value.item() if value.numel() == 1 else value.tolist()

"""Metrics of training batches. They stay on the device and become numbers at a boundary."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from det_core import MetricError, Metrics, TrialError, number


def kept(metrics: Any) -> dict[str, Any]:
    """Return the result of `train_batch` as a dict that can be read later.

    Tensors stay on their device.

    Raises TrialError if the result is neither a loss nor a dict.
    """
    if isinstance(metrics, dict):
        return {
            name: (
                value.detach()
                if type(value) is torch.Tensor and value.requires_grad
                else _kept(value)
            )
            for name, value in metrics.items()
        }
    if isinstance(metrics, torch.Tensor):
        return {"loss": _kept(metrics)}
    if isinstance(metrics, (int, float)):
        return {"loss": metrics}
    raise TrialError(
        f"train_batch returned {type(metrics).__name__}; return the loss, or a dict of metrics by"
        " name"
    )


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # A result of the graph is not changed later. Any other tensor may be a buffer that the next
        # batch changes.
        return value.detach() if value.requires_grad else value.clone()
    if isinstance(value, dict):
        return {name: _kept(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_kept(inner) for inner in value]
    return value


class Numbers:
    """Turns the metrics of batches into numbers.

    Other values are left out, with one warning for each name.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def __call__(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        """Return a row of numbers for each batch, with one transfer from the device
        for each name.
        """
        names = dict.fromkeys(chain.from_iterable(rows))
        columns = {name: self._column(name, [row.get(name) for row in rows]) for name in names}
        return [
            {name: value for name in row if (value := columns[name][index]) is not None}
            for index, row in enumerate(rows)
        ]

    def _column(self, name: str, values: list[Any]) -> list[float | None]:
        scalars = [value for value in values if isinstance(value, torch.Tensor) and value.ndim == 0]
        if len(scalars) == len(values):
            try:
                numbers: list[float | None] = torch.stack(scalars).tolist()
                return numbers
            except RuntimeError:
                # The tensors are on several devices.
                pass
        return [self._number(name, value) for value in values]

    def _number(self, name: str, value: Any) -> float | None:
        if value is None:
            return None
        try:
            return number(name, value)
        except MetricError as error:
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(f"{error}; it is left out of the reports", stacklevel=1)
            return None

"""Lightning's validation, between two training batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from det_torch.rng import untouched_rng

from . import logged


def run_validation(trainer: pl.Trainer, *, behind_a_batch: bool) -> dict[str, Any]:
    """Validate as Lightning's own loop does at the end of a batch; return what was logged over the validation set.

    Lightning has no call for this within a fit. These are the lines of `_TrainingEpochLoop.on_advance_end`, where the step of
    the batch is not counted yet, so that loggers get the number of that step.
    """
    loop, connector = trainer.fit_loop.epoch_loop, trainer._logger_connector
    module = trainer.lightning_module
    before, iteration = logged.known(trainer), connector._first_loop_iter
    stepped = behind_a_batch and not loop._should_accumulate()
    with untouched_rng(), _as_before(connector, iteration):
        loop._batches_that_stepped -= stepped
        trainer.validating = True
        try:
            if is_overridden("on_validation_model_zero_grad", module) or (
                module.automatic_optimization and not loop._should_accumulate()
            ):
                module.on_validation_model_zero_grad()
            loop.val_loop.run()
        finally:
            trainer.training = True
            loop._batches_that_stepped += stepped
    return logged.changed(trainer, before)


@contextmanager
def _as_before(connector: Any, iteration: bool | None) -> Iterator[None]:
    connector.epoch_end_reached()
    try:
        yield
    finally:
        connector._first_loop_iter = iteration


class Returned:
    """The means of what `validation_step` returns, for modules that log nothing; a tensor counts as `loss`."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, outputs: Any) -> None:
        """Take the outputs of one batch."""
        values = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        for name, value in values.items():
            if isinstance(name, str) and _is_number(value):
                plain = value.detach() if isinstance(value, torch.Tensor) else value
                self._sums[name] = self._sums.get(name, 0) + plain
                self._counts[name] = self._counts.get(name, 0) + 1

    def means(self) -> dict[str, Any]:
        """Return the means, and begin anew."""
        found = {name: value / self._counts[name] for name, value in self._sums.items()}
        self._sums, self._counts = {}, {}
        return found


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Number) and not isinstance(value, (bool, complex))

"""Lightning's validations, between two training batches: the data of each, and what is made of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

import lightning.pytorch as pl
import torch

from det_core import Communicator
from det_torch.rng import untouched_rng

from . import logged, sources
from .internals import accumulates, between_epochs, fewer_steps, overrides, results_of_validation
from .repeated import leave_no_trace
from .sources import Build
from .validation_feed import ValidationFeed


class Validations(pl.Callback):
    """The validations of one trainer's fit: their data, dealt to the ranks, and the metrics of each."""

    def __init__(self, distributed: Communicator, seed: int, build: Callable[[Build, str], Any]) -> None:
        self._distributed, self._seed, self._build = distributed, seed, build
        self._feeds: list[ValidationFeed] = []
        self._returned = Returned()
        self._batches, self._repeating = 0, False  # of the validation that goes on
        self.shares: dict[str, tuple[str, float]] = {}
        """Of each metric of the last validation, how it is reduced over ranks, and its weight there."""

    def _close_feeds(self) -> None:
        for each in self._feeds:
            each.close()
        self._feeds = []

    def _measure(self, trainer: pl.Trainer, *, behind_a_batch: bool) -> dict[str, Any]:
        """Validate; return what was logged, and means of what was returned under other names."""
        self._returned.means()
        self._batches, self.shares = 0, {}
        found = run_validation(trainer, behind_a_batch=behind_a_batch)
        means = self._returned.means()
        self.shares = dict.fromkeys(means, ("mean", float(self._batches))) | self.shares
        return means | found

    # Data

    def _validate_on(self, build: Build) -> Any:
        self._close_feeds()
        with untouched_rng():
            loaders = self._build(build, "validation")
        return sources.each_loader(loaders, self._one_loader)

    def _one_loader(self, loader: Any) -> ValidationFeed:
        feed = ValidationFeed(loader, self._distributed, self._seed)
        self._feeds.append(feed)
        self._advise([feed.advice] if feed.advice else [])
        return feed

    def _advise(self, advice: list[str]) -> None:
        if self._distributed.rank == 0:
            for sentence in advice:
                warnings.warn(sentence, stacklevel=1)

    # Hooks

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, *loader: int
    ) -> None:
        feeds = [self._feeds[index] for index in loader] if self._feeds else []
        self._repeating = bool(self._feeds) and all(each.repeating for each in feeds or self._feeds)
        if self._repeating:
            leave_no_trace(trainer, results_of_validation(trainer))
        else:
            self._batches += 1

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *rest: Any, **more: Any
    ) -> None:
        if outputs is not None and not self._repeating:
            self._returned(outputs)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._feeds and all(each.dealt for each in self._feeds):
            self.shares = logged.shares(trainer, self._batches)


def run_validation(trainer: pl.Trainer, *, behind_a_batch: bool) -> dict[str, Any]:
    """Validate as Lightning's own loop does at the end of a batch; return what was logged over the validation set.

    Lightning has no call for this within a fit. These are the lines of `_TrainingEpochLoop.on_advance_end`, where the step of
    the batch is not counted yet, so that loggers get the number of that step.
    """
    module, before = trainer.lightning_module, logged.known(trainer)
    stepped = behind_a_batch and not accumulates(trainer)
    with untouched_rng(), between_epochs(trainer), fewer_steps(trainer, int(stepped)):
        trainer.validating = True
        try:
            if overrides(module, "on_validation_model_zero_grad") or (
                module.automatic_optimization and not accumulates(trainer)
            ):
                module.on_validation_model_zero_grad()
            trainer.fit_loop.epoch_loop.val_loop.run()
        finally:
            trainer.training = True
    return logged.changed(trainer, before)


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

"""Runs Lightning's validations between two training batches, with their data and their metrics."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

import lightning.pytorch as pl
import torch

from det_core import Communicator
from det_torch.data import ValidationBatches, validation_batches
from det_torch.rng import untouched_rng

from . import logged, sources
from .internals import accumulates, between_epochs, fewer_steps, overrides, results_of_validation
from .sources import Build


class Validations(pl.Callback):
    """The validations of a trainer's fit: their data, dealt to the ranks, and the
    metrics of each.
    """

    def __init__(
        self, distributed: Communicator, seed: int, build: Callable[[Build, str], Any]
    ) -> None:
        self._distributed, self._seed, self._build = distributed, seed, build
        self._feeds: list[ValidationFeed] = []
        self._returned = Returned()
        # The number of batches of the current validation, and whether its batch is repeated.
        self._batches, self._repeating = 0, False
        self.shares: dict[str, tuple[str, float]] = {}
        """Each metric of the last validation: its reduction over ranks and this rank's weight."""

    def _close_feeds(self) -> None:
        for each in self._feeds:
            each.close()
        self._feeds = []

    def _measure(self, trainer: pl.Trainer, *, behind_a_batch: bool) -> dict[str, Any]:
        """Validate and return the metrics: logged values, and the means of returned values that
        were not logged.
        """
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
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
        *loader: int,
    ) -> None:
        feeds = [self._feeds[index] for index in loader] if self._feeds else []
        self._repeating = bool(self._feeds) and all(each.repeating for each in feeds or self._feeds)
        if self._repeating:
            leave_no_trace(trainer, results_of_validation(trainer))
        else:
            self._batches += 1

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        *rest: Any,
        **more: Any,
    ) -> None:
        if outputs is not None and not self._repeating:
            self._returned(outputs)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._feeds and all(each.dealt for each in self._feeds):
            self.shares = logged.shares(trainer, self._batches)


def run_validation(trainer: pl.Trainer, *, behind_a_batch: bool) -> dict[str, Any]:
    """Validate as Lightning's own loop does at the end of a batch.

    Returns what was logged over the validation set.

    Lightning has no call for this within a fit. This repeats the lines of
    `_TrainingEpochLoop.on_advance_end`. There the step of the batch is not counted yet, so that
    loggers get the number of that step.
    """
    module, before = trainer.lightning_module, logged.known(trainer)
    stepped = behind_a_batch and not accumulates(trainer)
    with untouched_rng(), between_epochs(trainer), fewer_steps(trainer, int(stepped)):
        trainer.validating = True
        # Otherwise the first validation of a resumed run would skip as many batches as the one
        # before it had.
        trainer.fit_loop.epoch_loop.val_loop.restarting = False
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
    """The means of what `validation_step` returns, for modules that log nothing.

    A tensor counts as `loss`.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, outputs: Any) -> None:
        """Add the outputs of one batch."""
        values = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        for name, value in values.items():
            if isinstance(name, str) and _is_number(value):
                plain = value.detach() if isinstance(value, torch.Tensor) else value
                self._sums[name] = self._sums.get(name, 0) + plain
                self._counts[name] = self._counts.get(name, 0) + 1

    def means(self) -> dict[str, Any]:
        """Return the means and reset them."""
        found = {name: value / self._counts[name] for name, value in self._sums.items()}
        self._sums, self._counts = {}, {}
        return found


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Number) and not isinstance(value, (bool, complex))


_FILLED = (list, dict, set, deque)
_PLAIN = (*_FILLED, torch.Tensor, bool, int, float, str, type(None))


class Aside:
    """A copy of the plain attributes and buffers of some objects: numbers,
    tensors and containers.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        self._held = [
            (held, name, value, _copied(value))
            for thing in things
            for held in (vars(thing), vars(thing).get("_buffers", {}))
            for name, value in held.items()
            if isinstance(value, _PLAIN) and name not in ("_parameters", "_buffers", "_modules")
        ]

    def put_back(self) -> None:
        """Restore all values. Containers stay the same objects."""
        for held, name, value, copy in self._held:
            if isinstance(value, (list, deque)):
                value.clear()
                value.extend(copy)
            elif isinstance(value, (dict, set)):
                value.clear()
                value.update(copy)
            held[name] = value if isinstance(value, _FILLED) else copy


def leave_no_trace(trainer: pl.Trainer, results: dict[str, Any]) -> None:
    """Undo the effects of the validation batch that begins on the module, the callbacks and the
    logged metrics.

    A metric that was not logged before is kept without a value, as the ranks reduce it together.
    All is restored after the module's own hook for the end of a batch, which is the last hook.
    """
    module = trainer.lightning_module
    logged = dict(results)
    aside = Aside([*module.modules(), *trainer.callbacks, *logged.values()])  # type: ignore[attr-defined]
    ends = module.on_validation_batch_end

    def end(*args: Any, **kwargs: Any) -> None:
        del module.on_validation_batch_end
        ends(*args, **kwargs)
        aside.put_back()
        for key, metric in results.items():
            if key not in logged:
                metric.reset()
                metric.has_reset = False

    module.on_validation_batch_end = end  # type: ignore[method-assign]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if type(value) in (list, tuple, deque):
        return type(value)(_copied(inner) for inner in value)
    return set(value) if isinstance(value, set) else value


class ValidationFeed:
    """One loader of validation batches.

    They are dealt to the ranks, unless they are shares of the ranks already.

    A rank with fewer batches than another repeats a batch for each missing one, as a collective in
    a validation step needs all ranks. `repeating` says whether the current batch is repeated and
    must not count. Data without a length that is not sharded is read whole by every rank. `dealt`
    is False for it.
    """

    def __init__(self, loader: Any, distributed: Communicator, seed: int) -> None:
        whole = validation_batches(loader, rank=0, size=1, seed=seed)
        self.loader, self.repeating = loader, False
        self._length, self.dealt = _length(whole), whole.sharded
        self.advice: str | None = None
        self._share: ValidationBatches = whole
        self._other: ValidationBatches | list[Any] = whole
        if distributed.size > 1 and self._length is not None and not whole.sharded:
            self.dealt = True
            self._share = validation_batches(
                loader, rank=distributed.rank, size=distributed.size, seed=seed
            )
            self.advice = self._share.advice
            self._other = validation_batches(loader, rank=0, size=self._length, seed=seed)
            self._length = -(-self._length // distributed.size)
        elif distributed.size > 1 and whole.sharded:
            lengths = distributed.allgather(self._length)
            self._length = None if None in lengths else max(lengths)
            # A rank without a batch gets another rank's.
            if 0 in lengths:
                batches = distributed.allgather(next(iter(whole), None) if self._length else None)
                self._other = [batch for batch in batches if batch is not None][:1]

    def __len__(self) -> int:
        """Return the number of this rank's batches. Raises TypeError if that is unknown."""
        if self._length is None:
            raise TypeError("the validation data has no length")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        given, self.repeating = 0, False
        for batch in self._share:
            given += 1
            yield batch
        for _ in range(given, self._length or 0):
            self.repeating = True
            yield next(iter(self._other))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def close(self) -> None:
        """End worker processes."""
        for each in (self._share, self._other):
            if isinstance(each, ValidationBatches):
                each.close()


def _length(batches: ValidationBatches) -> int | None:
    try:
        return len(batches)
    except TypeError:
        return None

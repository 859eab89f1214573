"""The callback by which det conducts a fit of Lightning's.

Lightning owns the loop. det is told of a batch when nothing of it is left to be done: before the next one is read, or where
its epoch ends, before the hooks that end it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from det_core import Communicator
from det_torch.rng import set_rng_state, untouched_rng

from . import logged, position, snapshot, sources
from .feed import Feed
from .pace import Pace
from .position import Position
from .sources import Build
from .validation import Validations


class Conductor(Validations):
    """Counts the batches of one trainer's fit, and lets its pace decide between them."""

    def __init__(
        self,
        pace: Pace,
        distributed: Communicator,
        *,
        seed: int,
        build: Callable[[Build, str], Any] = lambda build, split: build(),
        build_training: Build | None = None,
        build_validation: Build | None = None,
        check: Callable[[list[Any]], None] = lambda callbacks: None,
        observe: Callable[[int, Any], None] | None = None,
    ) -> None:
        super().__init__(distributed, seed, build)
        self._pace, self._check, self._observe = pace, check, observe
        self._own = (build_training, build_validation)
        self._trainer: Any = None
        self._feed: Feed | None = None
        self._step_metrics = logged.StepMetrics()
        self._begin_anew()
        self._contents: dict[str, Any] = {}  # of the checkpoint that this fit goes on from
        self._loops: dict[str, Any] = {}
        self._epoch_metrics: dict[str, Any] = {}  # not reported yet
        self._at_epoch_end: tuple[dict[str, Any], set[str]] | None = None
        self._handler: Any = None

    def _begin_anew(self) -> None:
        self.at = Position()
        self._row: dict[str, Any] | None = None  # of a batch that det has not been told of
        self._running = self._stopped = self._set_up = False
        self._rng: Mapping[str, Any] | None = None

    # What a pace asks

    @property
    def trainer(self) -> pl.Trainer:
        """The trainer that fits."""
        trainer: pl.Trainer = self._trainer
        return trainer

    @property
    def running(self) -> bool:
        """Whether a fit is set up and has not been torn down."""
        return self._running

    @property
    def is_set_up(self) -> bool:
        """Whether a fit has begun, so that its data may be asked for."""
        return self._set_up

    @property
    def has_feed(self) -> bool:
        """Whether the training data is there."""
        return self._feed is not None

    @property
    def feed(self) -> Feed:
        """The training data, which is there once a fit is set up."""
        assert self._feed is not None
        return self._feed

    def resume(self, checkpoint: Mapping[str, Any], contents: Mapping[str, Any], *, from_start: bool = False) -> None:
        """Let the next fit go on from a checkpoint, whose weights it loads itself; `from_start` counts from batch 0."""
        self._contents = dict(contents)
        self._loops = {} if from_start else dict(checkpoint["loops"]["fit_loop"])
        if from_start:
            self._contents |= {"position": {}, "data": None, "gradients": {}, "epoch_metrics": {}, "evaluating": None}
            self._contents["ranks"] = [{"rng_state": contents["ranks"][0]["rng_state"]}]

    def validate(self) -> dict[str, Any]:
        """Return the metrics of a validation: what was logged, and means of what was returned under other names."""
        found = self._measure(self.trainer, behind_a_batch=self.at.done > 0)
        if self.trainer.should_stop and not self._stopped:
            self._should_stop()
        return found

    def take_epoch_metrics(self) -> dict[str, Any]:
        """Return what was logged over epochs since this was last asked."""
        found, self._epoch_metrics = self._epoch_metrics, {}
        return found

    def capture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the two parts of a checkpoint; every rank must ask for it."""
        more = {"epoch_metrics": {name: float(value) for name, value in self._epoch_metrics.items()}}
        with untouched_rng():  # what hooks draw here must not depend on how often a run is saved
            return snapshot.capture(self.trainer, self.feed, self.at, self._distributed, more, self._of_rank())

    def _of_rank(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of this rank, beside what every conductor has."""
        return {}

    def _restore_of_rank(self, own: dict[str, Any]) -> None:
        """Take up what `_of_rank` returned."""

    def save(self, directory: Path) -> None:
        """Write a checkpoint; every rank must ask for it, the chief writes."""
        checkpoint, contents = self.capture()
        if self._distributed.rank == 0:
            snapshot.write(checkpoint, contents, directory)

    def close(self) -> None:
        """End what reads ahead."""
        self._close_feeds()
        if self._feed is not None:
            self._feed.close()
        self._feed = None

    # Data

    def attach(self, trainer: pl.Trainer, *, validation: bool = True) -> None:
        """Stand between a trainer and its data: that to train on and, by default, that to validate on."""
        self._trainer = trainer
        sources.stand_between(trainer, self._train_on, self._validate_on if validation else None, *self._own)

    def _train_on(self, build: Build) -> Feed:
        with untouched_rng():
            loaders = self._build(build, "training")
        limit = self.trainer.limit_train_batches
        feed = Feed(loaders, self._distributed, self._between, seed=self._seed, limit=limit, observe=self._observe)
        if self._feed is not None:  # of an earlier epoch
            self._feed.close()
            feed.restore(self.at, None)
            feed.begin_epoch(self.at)
        elif self._contents:
            self.at = snapshot.position_of(self._contents, feed)
            feed.restore(self.at, snapshot.data_of(self._contents, self._distributed))
            if self.at.done:
                position.take_up(self.trainer, self._loops, self.at)
        self._feed = feed
        self._advise(feed.advice)
        return feed

    # Hooks

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            self._check(list(trainer.callbacks))  # type: ignore[attr-defined]  # those of the module are among them now
            self._begin_anew()
            self.close()
            self._set_up = True
            if threading.current_thread() is threading.main_thread():
                self._handler = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._handler is not None:  # Lightning's would end the run with an exception in the middle of an epoch
            signal.signal(signal.SIGTERM, self._handler)
        self._restore(pl_module)

    def begin(self) -> None:
        """Begin training: there may be something to be done before the first batch, or no batch at all."""
        self._running = True
        self._restore_rng(keep=bool(self.at.done))
        if self._pace.begin(self):
            self._stop()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._take_late_metrics()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._stopped:  # a batch that was read ahead
            raise StopIteration

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._row = {} if loss is None else {"loss": loss}

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._running = False

    # Between two batches

    def _between(self) -> bool:
        """Tell of the batch before, if there is one; return whether to stop."""
        if not self._running:  # Lightning reads ahead while it sets up
            return False
        self._restore_rng()
        return self._stopped or (self._row is not None and self._conclude())

    def _conclude(self) -> bool:
        return self._tell(self._take_row())

    def _take_row(self) -> dict[str, Any]:
        """Count the batch that is over, and return its metrics."""
        row, self._row = self._row or {}, None
        self.at.batch, self.at.done, self.at.closed = self.at.batch + 1, self.at.done + 1, False
        scale = self.trainer.accumulate_grad_batches
        if scale > 1 and "loss" in row and self.trainer.lightning_module.automatic_optimization:
            row["loss"] = row["loss"] * scale  # Lightning divides it
        return row | self._step_metrics(self.trainer)

    def _tell(self, row: dict[str, Any]) -> bool:
        if self.trainer.should_stop:
            self._should_stop()
        if self._pace.step(self, row):
            self._stop()
        return self._stopped

    # Behind the last batch of an epoch

    def _end_of_data(self) -> None:
        """Tell of the last batch of an epoch, unless the run that saved this checkpoint did."""
        self._take_epoch_metrics()
        if self._row is not None:
            self.at.ended = True
            if self._conclude():
                position.leave_at_end(self.trainer)
        else:
            self._restore_rng()

    def _go_on(self, *, next_epoch: bool = True) -> None:
        """Let the hooks end the epoch as any other, and stand before the next one."""
        if self._stopped:
            return
        position.end_as_any_other(self.trainer)
        self._at_epoch_end = logged.known(self.trainer), logged.names(self.trainer)
        if next_epoch:
            self.at.end_epoch()
            self.feed.begin_epoch(self.at)

    def _take_epoch_metrics(self) -> None:
        if not self.at.ended:  # else the run that saved this checkpoint has taken them
            self._epoch_metrics |= logged.epoch_metrics(self.trainer)

    def _stop(self) -> None:
        self._stopped = self.trainer.should_stop = True

    def _should_stop(self) -> None:
        """Pass on that the module or a callback wants to stop: when and how is det's business."""
        self.trainer.should_stop = False
        self._pace.request_stop()

    def _take_late_metrics(self) -> None:
        """Take what hooks have logged at the end of the epoch, behind det's step."""
        if self._at_epoch_end is not None:
            (before, taken), self._at_epoch_end = self._at_epoch_end, None
            late = logged.changed(self.trainer, before)
            self._epoch_metrics |= {name: value for name, value in late.items() if name not in taken}

    # Restoring

    def _restore(self, module: pl.LightningModule) -> None:
        contents = self._contents
        if not contents:
            return
        ranks = contents["ranks"]
        own = ranks[self._distributed.rank] if len(ranks) == self._distributed.size else ranks[0]
        if self.at.done:
            logged.set_sums(self.trainer, own["sums"])
            logged.set_metric_states(module, own["metric_states"], self.trainer.strategy.root_device)
            logged.set_known(self.trainer, own["known"], within_epoch=not self.at.ended)
            self._epoch_metrics = dict(contents["epoch_metrics"])
            snapshot.set_gradients(module, contents["gradients"])
            snapshot.set_evaluating(module, contents["evaluating"])
            self._restore_of_rank(own)
        self._rng = own["rng_state"]
        self._restore_rng(keep=bool(self.at.done))

    def _restore_rng(self, *, keep: bool = False) -> None:
        """Put the generators where they were; once more before the first batch, as hooks may draw while training begins."""
        if self._rng is not None:
            set_rng_state(self._rng)
            if not keep:
                self._rng = None

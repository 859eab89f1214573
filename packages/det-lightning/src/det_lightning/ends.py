"""The start and the end of a trial's fit.

Lightning knows the length before it starts, and ends training before det's last checkpoint. The
last batch of a trial is followed by these steps, in the order of Lightning:

- a validation,
- the hooks that end the epoch,
- the rest of Lightning's training, such as an epoch that a callback added,
- the hooks that end training.

A run that is preempted leaves out the last two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging

from det_core import TrialError
from det_core.config import Length
from det_torch.sharding import is_sharded, reshard

from .internals import LightningsFitLoop
from .training_loop import Hooks, TrainingLoop

_MOST_EMPTY = 1000


class TrialConductor(TrainingLoop):
    """The conductor of a trial.

    det-core's loop decides when the trial ends, and calls `finish` when it is complete.
    """

    # Whether the trial's last batch is trained and lies in the middle of an epoch.
    _last = False
    # Whether all hooks that end training have been called.
    _over = False
    # The number of successive epochs without a batch.
    _empty = 0
    _validated: tuple[int, dict[str, Any]] | None = None
    _measured: tuple[str, dict[str, Any]] | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self._last = self._extra = self._over = self._was_over = False
            self._validated = self._measured = None
            self.loop.renew()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._pace.wrap(trainer)
        super().on_fit_start(trainer, pl_module)

    @property
    def loop(self) -> FitLoop:
        """The loop of the trainer's fit."""
        loop = self.trainer.fit_loop
        assert isinstance(loop, FitLoop)
        return loop

    def begin(self) -> None:
        """Begin training, after all hooks have been called that start it."""
        if self.at.batch:
            _resume_averaging(self.trainer)
        super().begin()

    def _between(self) -> bool:
        if self._extra:
            return False
        if self._row is not None and self._pace.is_last(self.at.done + 1):
            # The hooks that end the epoch come before the pace gets the batch.
            self._last = True
            return True
        return super()._between()

    # Hooks

    def on_train_batch_start(self, *args: Any) -> None:
        # Lightning has read this batch ahead. It is not trained.
        if self._last or self._stopped:
            raise StopIteration

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._extra:
            self._go_on(next_epoch=not self._last)

    # The ends of an epoch and of training, around Lightning's hooks

    def end_epoch(self, hooks: Hooks) -> None:
        """Pass an epoch's last batch to the pace, and call the hooks that end the epoch.

        A run that is preempted leaves the hooks to the next run.
        """
        if self._over:
            return
        if self._row is not None and self._pace.is_last(self.at.done + 1):
            self._end_last_epoch(hooks)
            return
        self._watch_empty()
        self._hooks = hooks
        if not (self._stopped or self._extra):
            self._end_of_data()
        if not (self._over or (self._stopped and self._pace.leaves)):
            self.call_hooks()
        self._hooks = None

    def _watch_empty(self) -> None:
        """Raise TrialError if training would continue forever without a batch."""
        self._empty = (
            0 if self.at.batch or self._row is not None or self._extra else self._empty + 1
        )
        if self._empty > _MOST_EMPTY:
            raise TrialError(
                f"{self._empty} epochs in a row have ended before their first batch:"
                " on_train_batch_start, or a callback, ends each of them; to end the trial, set"
                " trainer.should_stop"
            )

    def capture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Capture after the hooks that end an epoch, as they clear what was collected over it.

        A run that leaves its validation to the next run leaves the hooks too, as they come after
        it.
        """
        if self._hooks is not None and not self._pace.owes_validation:
            self.call_hooks()
        return super().capture()

    def _end_last_epoch(self, hooks: Hooks) -> None:
        """Validate before the hooks, as Lightning does.

        Pass the batch to the pace after them, as its report contains what they log.
        """
        row = self._take_row()
        self._take_epoch_metrics()
        self.at.ended = not self._last
        self._measured = None
        found = self.validate()
        self._measured = (_checksum(self.trainer.lightning_module), found)
        hooks()
        self.at.closed = True
        self._epoch_metrics.collect_late(self.trainer)
        self._report_batch(row)

    def finish(self) -> None:
        """Let Lightning do the rest of its training and its `on_train_end`."""
        complete = self._pace.is_last(self.at.done)
        if (
            self._measured is None
            and self._validated is not None
            and self._validated[0] == self.at.done
        ):
            self._measured = (_checksum(self.trainer.lightning_module), self._validated[1])
        self.trainer.should_stop = not complete
        if not self.at.closed:
            self._hooks = None
            # Otherwise they have been called for a checkpoint.
            if self.at.batch or not self.at.done:
                self.loop.end_epoch()
            self.at.closed = True
        self._extra = True
        if complete:
            self.loop.train_added_epochs()
        self.loop.end_training()
        self._extra, self._over = False, True

    def end_training(self, hooks: Hooks) -> None:
        """Call the hooks that end training, unless they have been called or belong
        to another run.
        """
        if not (self._over or self._was_over or self._pace.leaves):
            hooks()
        self._running = False

    # Validations: a module that the last hooks have not changed is not validated twice.

    def validate(self) -> dict[str, Any]:
        measured, self._measured = self._measured, None
        if measured is not None:
            changed = measured[0] != _checksum(self.trainer.lightning_module)
            if not self._distributed.agree(changed):
                return measured[1]
        found = super().validate()
        self._validated = (self.at.done, found)
        return found

    # State

    def _of_rank(self) -> dict[str, Any]:
        measured = list(self._measured) if self._measured else None
        return {**super()._of_rank(), "measured": measured, "over": self._over or self._was_over}

    def _restore_of_rank(self, own: dict[str, Any]) -> None:
        measured = own.get("measured")
        self._measured = (measured[0], measured[1]) if measured else None
        self._was_over = bool(own.get("over"))


class FitLoop(LightningsFitLoop):
    """Lightning's loop for a trial of known length. det-core's loop ends it.

    `max_epochs` and `max_steps` correspond to the length. Schedules and callbacks read them, and
    they do not stop the training. `batches` returns the length in batches once the training data is
    set up.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        conductor: TrialConductor,
        length: Length | None,
        batches: Callable[[], int],
    ) -> None:
        own = trainer.fit_loop
        self._conductor, self._trained_for, self._batches = conductor, length, batches
        self._epochs = length.n if length is not None and length.unit == "epochs" else -1
        super().__init__(trainer, own.min_epochs, self._epochs)
        self.epoch_loop = own.epoch_loop

    def renew(self) -> None:
        """Remove the epochs that callbacks of an earlier fit have added."""
        self.max_epochs = self._epochs

    @property
    def max_steps(self) -> int:
        """The number of optimizer steps if the length is in batches or records. -1 if it is in
        epochs or unknown.
        """
        length, every = self._trained_for, int(self.trainer.accumulate_grad_batches)
        if length is None or length.unit == "epochs":
            return -1
        if length.unit == "batches" and every == 1:
            return length.n
        if not self._conductor.is_set_up:
            return -1
        # The feed asks for this property too while it is made.
        if not self._conductor.has_feed:
            self.setup_data()
        if self.max_batches == float("inf"):
            return -(-self._batches() // every)
        epochs, rest = divmod(self._batches(), int(self.max_batches))
        # Optimizers also step after the last batch of an epoch.
        return epochs * -(-int(self.max_batches) // every) - (-rest // every)

    @property
    def done(self) -> bool:
        return self.max_batches == 0 or self.trainer.should_stop

    def on_run_start(self) -> None:
        super().on_run_start()
        self._conductor.begin()

    def on_advance_start(self) -> None:
        if self.epoch_loop.max_steps != -1:
            raise TrialError(
                f"fit_loop.epoch_loop.max_steps was set to {self.epoch_loop.max_steps}, as a tuner"
                " does that trains on its own; det decides how long to train: tune in a script, by"
                " Lightning's Trainer, or set searcher.max_length"
            )
        super().on_advance_start()

    def on_advance_end(self) -> None:
        self._conductor.end_epoch(self.end_epoch)

    def on_run_end(self) -> None:
        self._conductor.end_training(self.end_training)

    def end_epoch(self) -> None:
        """Run Lightning's code for the end of an epoch."""
        super().on_advance_end()

    def end_training(self) -> None:
        """Run Lightning's code for the end of the last epoch."""
        super().on_run_end()

    def train_added_epochs(self) -> None:
        """Train the epochs that callbacks have added to the length, such as one for the averages of
        BatchNorm.
        """
        for _ in range((self.max_epochs or 0) - self._epochs):
            self._conductor.feed.begin_epoch(self._conductor.at)
            try:
                self.on_advance_start()
                self.advance()
                self.end_epoch()
            finally:
                self.on_iteration_done()


def _resume_averaging(trainer: pl.Trainer) -> None:
    """Create the scheduler of weight averaging within an epoch.

    The callback itself creates it only where an epoch begins.
    """
    for each in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(each, StochasticWeightAveraging):
            # The scheduler's constructor sets the learning rates.
            with _same_rates(trainer):
                each.on_train_epoch_start(trainer, trainer.lightning_module)


@contextmanager
def _same_rates(trainer: pl.Trainer) -> Iterator[None]:
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    before = [group["lr"] for group in groups]
    yield
    for group, rate in zip(groups, before, strict=True):
        group["lr"] = rate


def _checksum(module: torch.nn.Module) -> str:
    """Return a checksum of the bits of all parameters and buffers that this rank holds."""
    reshard([module])
    found = hashlib.blake2b()
    for tensor in (*module.parameters(), *module.buffers()):
        own: Any = tensor
        own = own.to_local() if is_sharded(own) else own
        found.update(own.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()

"""Both ends of a trial's fit: Lightning sees its length before it starts, and has the last word before det's last checkpoint.

The last batch of a trial ends as Lightning's own does: a validation, the hooks that end the epoch, then, once no preemption is
in the way, whatever is left of Lightning's training (an epoch that a callback added) and the hooks that end it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging

from det_core.config import Length
from det_torch.sharding import is_sharded, reshard

from .conductor import Conductor
from .internals import LightningsFitLoop

Hooks = Callable[[], None]


class TrialConductor(Conductor):
    """The conductor of a trial: core's loop decides when it ends, and asks Lightning to finish where that is for good."""

    _last = False  # the trial's last batch is trained, in the middle of an epoch
    _extra = False  # epochs of Lightning's own are under way
    _over = False  # all hooks of the end have been called
    _was_over = False  # they had been in the run that this one goes on from
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

    @property
    def loop(self) -> FitLoop:
        """The loop of the trainer that fits."""
        loop = self.trainer.fit_loop
        assert isinstance(loop, FitLoop)
        return loop

    def begin(self) -> None:
        """Begin training, now that all hooks know of it."""
        if self.at.batch:
            _take_up_averaging(self.trainer)
        super().begin()

    def _between(self) -> bool:
        if self._extra:
            return False
        if self._row is not None and self._pace.is_last(self.at.done + 1):
            self._last = True  # the hooks that end the epoch come before det is told
            return True
        return super()._between()

    # Hooks

    def on_train_batch_start(self, *args: Any) -> None:
        if self._last:  # a batch that was read ahead
            raise StopIteration
        super().on_train_batch_start(*args)

    def on_train_batch_end(self, *args: Any) -> None:
        if not self._extra:
            super().on_train_batch_end(*args)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._extra:
            self._go_on(next_epoch=not self._last)

    # The ends of an epoch and of training, around Lightning's hooks

    def end_epoch(self, hooks: Hooks) -> None:
        """Tell of an epoch's last batch, and call the hooks that end it, which a run that is preempted leaves to the next."""
        if self._over:
            return
        if self._row is not None and self._pace.is_last(self.at.done + 1):
            self._end_last_epoch(hooks)
            return
        if not (self._stopped or self._extra):
            self._end_of_data()
        if not (self._over or (self._stopped and self._pace.leaves)):
            hooks()

    def _end_last_epoch(self, hooks: Hooks) -> None:
        """Validate before the hooks, as Lightning does, and tell of the batch behind them, as its report has what they log."""
        row = self._take_row()
        self._take_epoch_metrics()
        self.at.ended = not self._last
        self._pace.synchronize()
        self._measured = None
        found = self.validate()
        self._measured = (_checksum(self.trainer.lightning_module), found)
        hooks()
        self.at.closed = True
        self._take_late_metrics()
        self._tell(row)

    def finish(self) -> None:
        """Let Lightning do what is left to be done before and in its `on_train_end`."""
        complete = self._pace.is_last(self.at.done)
        if self._measured is None and self._validated is not None and self._validated[0] == self.at.done:
            self._measured = (_checksum(self.trainer.lightning_module), self._validated[1])
        self.trainer.should_stop = not complete
        if not self.at.closed:
            self.loop.end_epoch()
            self.at.closed = True
        self._extra = True
        if complete:
            self.loop.train_added_epochs()
        self.loop.end_training()
        self._extra, self._over = False, True

    def end_training(self, hooks: Hooks) -> None:
        """Call the hooks that end training, unless they have been called or are another run's."""
        if not (self._over or self._was_over or self._pace.leaves):
            hooks()
        self._running = False

    # Validations: what the hooks of the end left as it was is not measured twice

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
        return {"measured": list(self._measured) if self._measured else None, "over": self._over or self._was_over}

    def _restore_of_rank(self, own: dict[str, Any]) -> None:
        measured = own.get("measured")
        self._measured = (measured[0], measured[1]) if measured else None
        self._was_over = bool(own.get("over"))

    def _take_row(self) -> dict[str, Any]:
        self._was_over = False
        return super()._take_row()


class FitLoop(LightningsFitLoop):
    """Lightning's loop for a trial whose length is known, and which core's loop ends.

    `max_epochs` and `max_steps` are those of the length, for schedules and callbacks; they stop nothing. `batches` returns the
    length in batches, once the training data is set up.
    """

    def __init__(
        self, trainer: pl.Trainer, conductor: TrialConductor, length: Length | None, batches: Callable[[], int]
    ) -> None:
        own = trainer.fit_loop
        self._conductor, self._trained_for, self._batches = conductor, length, batches
        self._epochs = length.n if length is not None and length.unit == "epochs" else -1
        super().__init__(trainer, own.min_epochs, self._epochs)
        self.epoch_loop = own.epoch_loop

    def renew(self) -> None:
        """Forget what callbacks of an earlier fit have added."""
        self.max_epochs = self._epochs

    @property
    def max_steps(self) -> int:
        """The optimizer's steps in a length in batches or records, and -1 where it is in epochs or unknown."""
        length, every = self._trained_for, int(self.trainer.accumulate_grad_batches)
        if length is None or length.unit == "epochs":
            return -1
        if length.unit == "batches" and every == 1:
            return length.n
        if not self._conductor.is_set_up:
            return -1
        self.setup_data()
        if self.max_batches == float("inf"):
            return -(-self._batches() // every)
        epochs, rest = divmod(self._batches(), int(self.max_batches))
        return epochs * -(-int(self.max_batches) // every) - (
            -rest // every
        )  # it steps behind an epoch's last batch, too

    @property
    def done(self) -> bool:
        return self.max_batches == 0 or self.trainer.should_stop

    def on_run_start(self) -> None:
        super().on_run_start()
        self._conductor.begin()

    def on_advance_end(self) -> None:
        self._conductor.end_epoch(self.end_epoch)

    def on_run_end(self) -> None:
        self._conductor.end_training(self.end_training)

    def end_epoch(self) -> None:
        """Do what Lightning does behind an epoch."""
        super().on_advance_end()

    def end_training(self) -> None:
        """Do what Lightning does behind the last epoch."""
        super().on_run_end()

    def train_added_epochs(self) -> None:
        """Train the epochs that callbacks have added to those of the length, such as one for the averages of BatchNorm."""
        for _ in range((self.max_epochs or 0) - self._epochs):
            self._conductor.feed.begin_epoch(self._conductor.at)
            try:
                self.on_advance_start()
                self.advance()
                self.end_epoch()
            finally:
                self.on_iteration_done()


def _take_up_averaging(trainer: pl.Trainer) -> None:
    """Give averaging of weights its scheduler back within an epoch: it takes it up only where an epoch begins."""
    for each in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(each, StochasticWeightAveraging):
            with _same_rates(trainer):  # the scheduler's constructor sets them anew
                each.on_train_epoch_start(trainer, trainer.lightning_module)


@contextmanager
def _same_rates(trainer: pl.Trainer) -> Iterator[None]:
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    before = [group["lr"] for group in groups]
    yield
    for group, rate in zip(groups, before, strict=True):
        group["lr"] = rate


def _checksum(module: torch.nn.Module) -> str:
    """Return a checksum of the bits of all parameters and buffers, as far as this rank has them."""
    reshard([module])
    found = hashlib.blake2b()
    for tensor in (*module.parameters(), *module.buffers()):
        own: Any = tensor
        own = own.to_local() if is_sharded(own) else own
        found.update(own.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()

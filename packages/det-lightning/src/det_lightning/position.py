"""The position of training, in the terms of Lightning's loops.

Lightning advances its own progress after the hooks in which a checkpoint may be saved. A run that
resumes from such a checkpoint repeats a batch (Lightning's issues 18060, 19815 and 19367). Here the
state of its loops is computed from the batches that det counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl

from .internals import set_restarting


@dataclass(kw_only=True)
class Position:
    """A position in training.

    - `epoch`: the number of epochs that are over.
    - `batch`: the number of batches of the current epoch that are trained.
    - `done`: the number of all batches that are trained.
    - `ended`: whether the epoch has no more batches, and the hooks that end it have not been
      called.
    - `closed`: whether the trial ends here, and the hooks that end an epoch have been called. This
      may be within an epoch.
    """

    epoch: int = 0
    batch: int = 0
    done: int = 0
    ended: bool = False
    closed: bool = False

    @classmethod
    def after(cls, done: int, length: int) -> Position:
        """Return the position after `done` batches in epochs of `length` batches.

        The last epoch is not ended.
        """
        epoch, batch = divmod(done, length)
        if done and not batch:
            return cls(epoch=epoch - 1, batch=length, done=done, ended=True)
        return cls(epoch=epoch, batch=batch, done=done)

    def end_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.epoch, self.batch, self.ended = self.epoch + 1, 0, False


def loops_state(saved: Mapping[str, Any], at: Position) -> dict[str, Any]:
    """Return the state of Lightning's fit loop at a position.

    Counters of steps and schedulers stay as they were saved.
    """
    state = dict(saved)
    started = at.epoch + bool(at.batch)
    begun = {"ready": started, "started": started, "processed": at.epoch, "completed": at.epoch}
    state["epoch_progress"] = {"total": dict(begun), "current": dict(begun)}
    state["epoch_loop.batch_progress"] = {
        "total": _trained(at.done),
        "current": _trained(at.batch),
        "is_last_batch": at.ended,
    }
    state["state_dict"] = {}
    return state


def move_loops(trainer: pl.Trainer, saved: Mapping[str, Any], at: Position) -> None:
    """Move the loops of a trainer to a position, also between epochs.

    The trainer's data must be known.
    """
    trainer.fit_loop.load_state_dict(loops_state(saved, at))
    _go_on_with_next_batch(trainer)


def _go_on_with_next_batch(trainer: pl.Trainer) -> None:
    """Make a resumed epoch continue after the saved batch, or end if that was its last.

    Otherwise Lightning ends that batch once more if a validation follows it. It would count another
    step for loggers, and step schedulers that watch a metric.
    """
    loop = trainer.fit_loop.epoch_loop
    start = loop.on_run_start

    def start_once(fetcher: Any) -> None:
        del loop.on_run_start
        start(fetcher)
        # Not earlier: a loop that does not restart resets its epoch's counters in its `reset`.
        loop.restarting = False

    loop.on_run_start = start_once  # type: ignore[method-assign, assignment]


def go_as_any_other(trainer: pl.Trainer) -> None:
    """Make the first epoch of a resumed run begin and end like any other.

    Otherwise counters of the epoch before would continue, and schedulers that watch a metric would
    not be stepped. If this epoch had no batch left, the next one would have none.
    """
    set_restarting(trainer, False)
    trainer.fit_loop.epoch_loop.restarting = False


def leave_at_end(trainer: pl.Trainer) -> None:
    """Keep a run that stops after the last batch of an epoch from stepping schedulers that watch a
    metric.

    The next run steps them. They would need a metric that a preempted run has not measured.
    """
    set_restarting(trainer, True)


@contextmanager
def in_epoch(trainer: pl.Trainer, epoch: int) -> Iterator[None]:
    """Set `current_epoch` to another epoch in the body, so that data is built as it was in that
    epoch.
    """
    progress = trainer.fit_loop.epoch_progress.current
    now, progress.completed = progress.completed, epoch
    try:
        yield
    finally:
        progress.completed = now


def build_validation_data(trainer: pl.Trainer) -> None:
    """Build the validation data now, as the loop of a fit does where training begins."""
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.setup_data()
    trainer.training = True


def _trained(batches: int) -> dict[str, int]:
    return {"ready": batches, "started": batches, "processed": batches, "completed": batches}

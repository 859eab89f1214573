"""Where training is, in the terms of Lightning's loops.

Lightning's own progress is advanced after the hooks in which a checkpoint may be saved, so that a run that resumes from one
repeats a batch (its issues 18060, 19815 and 19367). What its loops are told here comes from the batches that det counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl

from .internals import set_restarting


@dataclass(kw_only=True)
class Position:
    """`epoch` epochs are over; `batch` batches of the current one are trained, of `done` batches in all.

    `ended` says that the epoch has no more batches, and its end is still to be told to the hooks. `closed` says that the trial
    is over here, and the hooks that end an epoch have been told, wherever in it that is.
    """

    epoch: int = 0
    batch: int = 0
    done: int = 0
    ended: bool = False
    closed: bool = False

    @classmethod
    def after(cls, done: int, length: int) -> Position:
        """Return the position behind `done` batches of epochs of `length`, whose last one has not been ended yet."""
        epoch, batch = divmod(done, length)
        if done and not batch:
            return cls(epoch=epoch - 1, batch=length, done=done, ended=True)
        return cls(epoch=epoch, batch=batch, done=done)

    def end_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch, self.batch, self.ended = self.epoch + 1, 0, False


def loops_state(saved: Mapping[str, Any], at: Position) -> dict[str, Any]:
    """Return the state of Lightning's fit loop at a position; counters of steps and schedulers stay as they were saved."""
    state = dict(saved)
    started = at.epoch + (0 if at.closed and not at.batch else 1)
    begun = {"ready": started, "started": started, "processed": at.epoch, "completed": at.epoch}
    state["epoch_progress"] = {"total": dict(begun), "current": dict(begun)}
    state["epoch_loop.batch_progress"] = {
        "total": _trained(at.done),
        "current": _trained(at.batch),
        "is_last_batch": at.ended,
    }
    state["state_dict"] = {}
    return state


def take_up(trainer: pl.Trainer, saved: Mapping[str, Any], at: Position) -> None:
    """Put the loops of a trainer, whose data is known, at a position within an epoch or at an end that is still to be told."""
    loop = trainer.fit_loop
    loop.load_state_dict(loops_state(saved, at))


def end_as_any_other(trainer: pl.Trainer) -> None:
    """Let an epoch that a resumed run began within end as any other.

    Schedulers that watch a metric would be passed over, and the next epoch would have no batch where this one had none left.
    """
    set_restarting(trainer, False)
    trainer.fit_loop.epoch_loop.restarting = False


def leave_at_end(trainer: pl.Trainer) -> None:
    """Let a run that stops behind the last batch of an epoch pass over schedulers that watch a metric, as the next run steps them.

    They would ask for a metric that a run which is preempted has not measured.
    """
    set_restarting(trainer, True)


def _trained(batches: int) -> dict[str, int]:
    return {"ready": batches, "started": batches, "processed": batches, "completed": batches}

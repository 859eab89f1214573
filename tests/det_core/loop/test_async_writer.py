"""Checkpoints that are written while training goes on: one at a time, and none is left behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from det_core import Every, Loop, Progress, Schedule, Stop
from det_core.train.async_writer import AsyncCheckpointWriter, PendingSave


@pytest.fixture
def trial(kit: Any) -> Callable[..., Any]:
    """Make a trial of ten batches whose checkpoints are written beside it, which takes `seconds`.

    `taken` are their states.
    """

    def make(seconds: float = 0.0, recorded: bool = True, **schedule: Any) -> Any:
        made = kit.Trial(kit.Driver([10]), Schedule(checkpoint=Every(4), policy="none", **schedule))
        made.taken = []

        def take(progress: Progress) -> PendingSave:
            at = progress.batches
            made.taken.append(progress)
            made.events.append(("take", at))

            def write() -> bool:
                time.sleep(seconds)
                return recorded

            return PendingSave(write, lambda: made.events.append(("ended", at)))

        made.writer = AsyncCheckpointWriter(take)
        return made

    return make


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_checkpoints_are_written_in_order_and_the_last_awaited(trial: Any, seconds: float) -> None:
    """A checkpoint is complete before the next one begins."""
    made = trial(seconds)
    assert made.run() is Stop.COMPLETED
    saved = [event for event in made.events if event[0] != "validate"]
    assert saved == [("take", 4), ("ended", 4), ("take", 8), ("ended", 8), ("save", 10)]


def test_preempted_run_awaits_the_pending_checkpoint_then_saves(trial: Any, kit: Any) -> None:
    made = trial(0.1)
    assert made.run(kit.Interruption("preempt", 6)) is Stop.PREEMPTED
    assert made.events == [("take", 4), ("ended", 4), ("save", 6)]


@pytest.mark.parametrize(("batches", "kept"), [(4, []), (5, [("save", 5)])])
def test_failed_training_still_completes_the_pending_checkpoint(
    trial: Any, batches: int, kept: list[Any]
) -> None:
    made, loops = trial(0.3), list[Any]()

    def fail(loop: Loop, number: int) -> None:
        loops.append(loop)
        if number == batches:
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        made.run(each_batch=fail)
    assert made.events == [("take", 4)]
    loops[0].save_after_error()
    assert made.events == [("take", 4), ("ended", 4), *kept]


@pytest.mark.parametrize(("recorded", "untold"), [(True, [6, 8]), (False, [2, 4, 6, 8])])
def test_reports_are_kept_until_a_recorded_checkpoint_has_them(
    trial: Any, recorded: bool, untold: list[int]
) -> None:
    made = trial(recorded=recorded, report=Every(2))
    made.run()
    assert [[batches for _, batches, _ in progress.untold] for progress in made.taken] == [
        [2, 4],
        untold,
    ]

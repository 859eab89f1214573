"""Learning-rate schedulers and the points at which they are stepped."""

from __future__ import annotations

import enum
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from det_core import TrialError


class LRScheduler:
    """A torch scheduler and the rule by which det steps it.

    `frequency` counts units of `step_mode`: epochs, batches, or steps of its optimizer. With
    MANUAL_STEP the trial steps it. Otherwise it is stepped after `train_batch`, on batches on which
    optimizers step. With STEP_EVERY_OPTIMIZER_STEP it is stepped right after a step of its
    optimizer. `optimizer_steps` is the number of these steps.
    """

    class StepMode(enum.Enum):
        """The unit in which a scheduler is stepped."""

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(self, scheduler: Any, step_mode: StepMode, frequency: int = 1) -> None:
        if not isinstance(step_mode, LRScheduler.StepMode):
            raise TypeError(f"step_mode is {step_mode!r}; give one of LRScheduler.StepMode")
        if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
            raise TrialError(
                f"the LR scheduler's frequency is {frequency!r}; give a whole number of 1 or more"
            )
        if (
            isinstance(scheduler, ReduceLROnPlateau)
            and step_mode is not LRScheduler.StepMode.MANUAL_STEP
        ):
            raise TrialError(
                "ReduceLROnPlateau needs a metric, which only the trial knows; wrap it with"
                " LRScheduler.StepMode.MANUAL_STEP and step it where the metric is at hand"
            )
        self.scheduler = scheduler
        self.step_mode = step_mode
        self.frequency = frequency
        self.optimizer_steps = 0

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler."""
        self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[float]:
        """Return the learning rates of the optimizer's groups."""
        rates: list[float] = self.scheduler.get_last_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scheduler's state."""
        self.scheduler.load_state_dict(state)

    def after_batch(self, batch: int, aggregation: int, per_epoch: int | None) -> None:
        """Step as often as is due after batch number `batch` (from 0), on which the optimizers
        stepped.
        """
        for _ in range(self._due(batch, aggregation, per_epoch)):
            self.scheduler.step()

    def after_optimizer_step(self, optimizer: Any, *arguments: Any) -> None:
        """Count a step of the optimizer, and step the scheduler if that is due.

        A step that the gradient scaler skips does not count.
        """
        # Fused optimizers skip a step on the device and have this attribute.
        overflow = getattr(optimizer, "found_inf", None)
        if overflow is not None and overflow.item():
            return
        self.optimizer_steps += 1
        if self.optimizer_steps % self.frequency == 0:
            self.scheduler.step()

    def _due(self, batch: int, aggregation: int, per_epoch: int | None) -> int:
        done, before = batch + 1, batch + 1 - aggregation
        match self.step_mode:
            case LRScheduler.StepMode.STEP_EVERY_BATCH:
                return done // self.frequency - before // self.frequency
            case LRScheduler.StepMode.STEP_EVERY_EPOCH if per_epoch:
                # For the scheduler, an epoch is over once the optimizers' next step lies in a
                # later epoch.
                upcoming, counted = (
                    (batch + aggregation) // per_epoch,
                    (batch if before else 0) // per_epoch,
                )
                return upcoming // self.frequency - counted // self.frequency
        return 0

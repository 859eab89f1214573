"""The arguments of `Trainer.fit`, before the length of an epoch is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from det_core import Adapter, Every, Schedule
from det_core.config import ExperimentConfig, Length

from .script_context import ArgumentError
from .units import Batch, Epoch, Period, TrainUnit

POLICIES = ("best", "all", "none")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The length and the periods of a training.

    A period that is None is taken from the configuration. If that has none, it is never due.
    """

    length: TrainUnit | None
    report: TrainUnit | None
    validate: TrainUnit | None
    checkpoint: TrainUnit | None
    policy: str
    validate_first: bool
    quick: bool
    profiling: bool
    config: ExperimentConfig

    def __post_init__(self) -> None:
        for unit in (self.length, self.report, self.validate, self.checkpoint):
            if unit is not None and not isinstance(unit, TrainUnit):
                raise TypeError(f"{unit!r} is no unit; give Batch(n) or Epoch(n)")
        if self.policy not in POLICIES:
            raise ArgumentError(
                f"checkpoint_policy is {self.policy!r}; give one of {', '.join(POLICIES)}"
            )

    @property
    def whole(self) -> Length | None:
        """The length as the user gave it, or None if the searcher determines it."""
        if self.length is None or not isinstance(self.length.value, int):
            return None
        return Length("epochs" if isinstance(self.length, Epoch) else "batches", self.length.value)

    def limit(self, adapter: Adapter[Any]) -> int | None:
        """Return the length in batches, or None if the searcher determines it."""
        if self.length is None:
            return None
        limit = self.length.batches(adapter.batches_per_epoch)
        if limit < 1:
            raise ArgumentError(
                f"max_length is {self.length!r}; give a positive number of batches or epochs"
            )
        return limit

    def schedule(self, adapter: Adapter[Any]) -> Schedule:
        """Return the schedule in batches."""
        config = self.config
        return Schedule(
            report=_period(self.report, None, adapter),
            validate=_period(self.validate, config.min_validation_period, adapter),
            checkpoint=_period(self.checkpoint, config.min_checkpoint_period, adapter),
            policy=self.policy,
            metric=config.searcher.metric if config.searcher else None,
            validate_first=self.validate_first or config.perform_initial_validation,
        )


def _period(given: TrainUnit | None, configured: Length | None, adapter: Adapter[Any]) -> Period:
    if given is None and configured is not None and configured.n:
        given = _unit(configured, adapter)
    return Every(0) if given is None else given.period(adapter.batches_per_epoch)


def _unit(length: Length, adapter: Adapter[Any]) -> TrainUnit:
    if length.unit == "epochs":
        return Epoch(length.n)
    if length.unit == "batches":
        return Batch(length.n)
    if not adapter.global_batch_size:
        raise ArgumentError(
            f"a period of {length} cannot be counted without a global_batch_size; give it in"
            " batches"
        )
    return Batch(max(1, length.n // adapter.global_batch_size))

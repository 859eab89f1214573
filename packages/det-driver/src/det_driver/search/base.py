"""What a search is: events go in, operations come out; and what it reads of an event."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from det_core.errors import MetricError, PluginError

WORST = sys.float_info.max
"""The loss of a trial that ended early or reported NaN: finite, because JSON knows no infinity."""


class Exit(StrEnum):
    """Why a trial ended."""

    COMPLETED = "completed"
    ERRORED = "errored"
    CANCELED = "canceled"
    INVALID_HP = "invalid_hp"
    USER_STOPPED = "user_stopped"


class Create(Struct, frozen=True, tag="create"):
    """A new trial, numbered 0, 1, 2, ... in order of creation.

    `seed` is in 0 ... 2**31 - 1. `source` names the trial from whose latest checkpoint this one starts; its own
    lengths count from zero all the same.
    """

    trial: int
    hparams: dict[str, Any]
    seed: int
    source: int | None = None


class Train(Struct, frozen=True, gc=False, tag="train"):
    """Train until the absolute length `until`, then validate and report.

    `until` is in the searcher's own unit: that of `max_length`, or of `time_metric`. None means until the trial ends
    by itself. It may come again later for the same trial with a larger `until`; in between the trial waits.
    """

    trial: int
    until: int | None


class Close(Struct, frozen=True, gc=False, tag="close"):
    """Nothing more for this trial: it stops, early if it is running, and is complete."""

    trial: int


class Shutdown(Struct, frozen=True, gc=False, tag="shutdown"):
    """The search is over; `failed` when every trial failed, `cancelled` when every trial was cancelled."""

    failed: bool = False
    cancelled: bool = False


Operation = Create | Train | Close | Shutdown


class Searcher(ABC):
    """Decides which trials to make and how long to train each.

    Pure: no I/O, no clock, no randomness but that of its own seed, so that the same events always give the same
    operations. `start` is called once, before any other event. `exited` is called once for every trial that was
    created, also for one that was closed.
    """

    metric: str | None = None
    """The validation metric that it reads, where it reads a single one."""

    time_metric: str | None = None
    """The validation metric that says how long a trial has trained; where it is None, `length` does."""

    version: int = 1
    """Of its `state`: raise it with any change of what that holds or means, and states of another version are passed over."""

    @abstractmethod
    def start(self) -> list[Operation]:
        """Open the search."""

    @abstractmethod
    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        """Take the validation that `trial` reported after `length`; also one that nothing asked for.

        Raises MetricError where a metric that it reads is missing or not a number.
        """

    @abstractmethod
    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        """Take note that `trial` has ended for good; a second report of it changes nothing."""

    @abstractmethod
    def progress(self, trial_progress: Mapping[int, float]) -> float:
        """Return how much of the search is done, 0 to 1.

        `trial_progress` says the same of the trials that have not ended; those left out count as not begun.
        """

    def state(self) -> dict[str, Any] | None:
        """Return everything it remembers, as JSON can hold it (no NaN, no infinity, string keys).

        Now and then it is asked and the answer kept, so that `det resume` need not give it all of its past events. None, for
        good, where it keeps no state: it goes on by hearing them anew.
        """
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the searcher whose state this is; from there on the two cannot be told apart."""
        raise PluginError(f"searcher {type(self).__name__} keeps no state; give it its past events anew")


class Objective(Struct, frozen=True):
    """Reads the searcher's metric as a loss, smaller being better."""

    metric: str
    smaller_is_better: bool = True

    def loss(self, metrics: Mapping[str, float]) -> float:
        """Return the metric, negated where larger is better; NaN is the worst there is."""
        value = read_number("searcher.metric", self.metric, metrics)
        if math.isnan(value):
            return WORST
        return max(-WORST, min(WORST, value if self.smaller_is_better else -value))


def read_number(setting: str, name: str, metrics: Mapping[str, float]) -> float:
    """Return `metrics[name]`; MetricError, naming those present, where it is missing or not a number."""
    try:
        value = metrics[name]
    except KeyError:
        present = ", ".join(sorted(metrics)) or "none"
        raise MetricError(f"{setting} is {name!r}, which the trial does not report; reported: {present}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MetricError(f"{setting} is {name!r}, which the trial reports as {value!r}; report a number") from None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

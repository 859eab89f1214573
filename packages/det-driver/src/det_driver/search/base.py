"""The interface of a search: events go in, operations come out."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from det_core.errors import ConfigError, MetricError, PluginError

from ..space import Limits

WORST = sys.float_info.max
"""The loss of a trial that ended early or reported NaN. Finite, because JSON has no infinity."""


class Exit(StrEnum):
    """Why a trial ended."""

    COMPLETED = "completed"
    ERRORED = "errored"
    CANCELED = "canceled"
    INVALID_HP = "invalid_hp"
    USER_STOPPED = "user_stopped"


class Create(Struct, frozen=True, tag="create"):
    """A new trial, numbered 0, 1, 2, ... in order of creation.

    `seed` is in 0 ... 2**31 - 1. The trial starts from the latest checkpoint of the trial `source`,
    if any. Its own lengths count from zero nevertheless.
    """

    trial: int
    hparams: dict[str, Any]
    seed: int
    source: int | None = None


class Train(Struct, frozen=True, gc=False, tag="train"):
    """Train until the absolute length `until`, then validate and report.

    `until` is in the searcher's own unit, that of `max_length` or of `time_metric`. None means
    until the trial ends by itself. The operation may follow again for the same trial with a larger
    `until`. Until then the trial waits.
    """

    trial: int
    until: int | None


class Close(Struct, frozen=True, gc=False, tag="close"):
    """End a trial, early if it is running. It is complete."""

    trial: int


class Shutdown(Struct, frozen=True, gc=False, tag="shutdown"):
    """The search is over.

    `failed`: every trial failed. `cancelled`: every trial was cancelled.
    """

    failed: bool = False
    cancelled: bool = False


class EarlierResult(Struct, frozen=True):
    """The best metric of a trial of an earlier experiment, and its hyperparameters by dotted names.

    `length` is how long it trained, in the unit of the search that learns from it.
    """

    hparams: dict[str, Any]
    length: float
    metric: float


Operation = Create | Train | Close | Shutdown


class Searcher(ABC):
    """Decides which trials to create and how long to train each.

    Pure: it has no I/O, no clock and no randomness except from its own seed. The same events always
    give the same operations. `start` is called once, before any other event. `exited` is called
    once for every created trial, also for one that was closed.
    """

    metric: str | None = None
    """The validation metric that it reads, if it reads a single one."""

    time_metric: str | None = None
    """The validation metric that measures how long a trial has trained. None: `length` does."""

    limits: Limits | None = None
    """The conditions and constraints that its proposals satisfy. None: it supports none."""

    version: int = 1
    """The version of its `state`. Every change of its content or meaning raises it.

    States of another version are ignored.
    """

    @abstractmethod
    def start(self) -> list[Operation]:
        """Open the search."""

    @abstractmethod
    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        """Handle the validation that `trial` reported after `length`, even if not requested.

        MetricError: a metric that it reads is missing or not a number.
        """

    @abstractmethod
    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        """Handle the end of `trial`. A second report of it changes nothing."""

    @abstractmethod
    def progress(self, trial_progress: Mapping[int, float]) -> float:
        """Return the progress of the search, 0 to 1.

        `trial_progress` has the progress of the trials that have not ended. Missing ones have not
        begun.
        """

    stopped: bool = False
    """Whether `stop` was called."""

    def stop(self) -> list[Operation]:
        """End the search: close every trial, and create no more."""
        raise PluginError(
            f"searcher {type(self).__name__} cannot be stopped; cancel the experiment"
        )

    def extend(self, count: int, enqueued: Sequence[Mapping[str, Any]] = ()) -> list[Operation]:
        """Create `count` more trials, and before them one with each of `enqueued`.

        The hyperparameters in `enqueued` have dotted names. Those that are left out are drawn at
        random. A search whose trials have all ended continues.

        ConfigError: it cannot, or the space does not have such hyperparameters.
        """
        raise ConfigError(
            f"searcher {type(self).__name__} takes no more trials; start another search"
        )

    @property
    def may_fill(self) -> bool:
        """Whether it creates further trials for idle slots now."""
        return False

    def fill(self, count: int) -> list[Operation]:
        """Create further trials for `count` idle slots. They end with the last of the others."""
        return []

    def learn(self, results: Sequence[EarlierResult]) -> list[str]:
        """Learn from earlier experiments.

        Return sentences that say from how many, and what is left out.
        """
        raise ConfigError(
            f"searcher {type(self).__name__} learns nothing from earlier experiments; leave out"
            " learn_from"
        )

    def stop_at(self, condition: str) -> list[Operation]:
        """End the search when a validation meets this condition.

        It replaces an earlier condition.
        """
        raise ConfigError(f"searcher {type(self).__name__} takes no condition to stop")

    def state(self) -> dict[str, Any] | None:
        """Return the complete state in JSON's types, with string keys and without NaN and infinity.

        It is saved from time to time, so that `det resume` need not replay all past events. A
        searcher that returns None is not asked again: all events are replayed.
        """
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state. The searcher then behaves exactly like the one that returned it."""
        raise PluginError(
            f"searcher {type(self).__name__} keeps no state; give it its past events again"
        )


class Objective(Struct, frozen=True):
    """Reads the searcher's metric as a loss, where smaller is better."""

    metric: str
    smaller_is_better: bool = True

    def loss(self, metrics: Mapping[str, float]) -> float:
        """Return the metric, negated where larger is better. NaN is the worst loss."""
        value = read_number("searcher.metric", self.metric, metrics)
        if math.isnan(value):
            return WORST
        return max(-WORST, min(WORST, value if self.smaller_is_better else -value))


def read_number(setting: str, name: str, metrics: Mapping[str, float]) -> float:
    """Return `metrics[name]`.

    MetricError: it is missing or not a number. The message names the metrics that are present.
    """
    try:
        value = metrics[name]
    except KeyError:
        present = ", ".join(sorted(metrics)) or "none"
        raise MetricError(
            f"{setting} is {name!r}, which the trial does not report; reported: {present}"
        ) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MetricError(
            f"{setting} is {name!r}, which the trial reports as {value!r}; report a number"
        ) from None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

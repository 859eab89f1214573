"""Measures metrics since the last report, and since the epoch began.

Keras's metric objects run from one report, or end of an epoch, to the next, so that a report has
exactly the metrics of its batches. Their states are added up to those of an epoch. They are read at
these two places only, so that batches cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .metrics import MetricObjects, State, Values, same
from .versions import keras


class Measures:
    """Holds the position, the states of metrics, and the last batch's logs.

    - `objects_only` says that the model uses Keras's own `train_step`, whose logs come from its
      metric objects.
    - `epoch_ended` says that an epoch has ended and callbacks have not been called for it yet.
    - `epochs` says whether metrics of epochs are needed.
    """

    def __init__(
        self,
        model: Any,
        objects: MetricObjects,
        position: int,
        average: bool,
        *,
        epochs: bool = True,
    ) -> None:
        self.objects = objects
        self.position = position
        self.objects_only = all(
            getattr(type(model), name) is getattr(keras.Model, name)
            for name in ("train_step", "compute_metrics", "get_metrics_result")
        )
        self.period_begins = True
        self.epoch_ended = False
        self.validation: Values = {}
        self._average, self._epochs = average, epochs
        # The number of batches since the last cut.
        self._fresh = 0
        self._logs: Any = {}
        self._period: list[State] = []
        # The epoch's state at the last cut in it.
        self._before: State = []
        # The names of the metrics that a user's step returns.
        self._names: set[str] | None = None
        self._epoch: Values = {}
        # Called before metrics are read, which another `compile` has replaced.
        self.check: Callable[[], None] = lambda: None

    def trained(self, batches: int, logs: Any) -> None:
        self.position += batches
        self._fresh += batches
        self._logs = logs

    def end_epoch(self) -> None:
        self.check()
        self._cut()
        self._epoch = self._values(self._before)
        self._before = []
        self.epoch_ended = True

    def _cut(self) -> None:
        """Add the metrics since the last cut to the period and the epoch.

        Reset the metric objects.
        """
        if self._fresh:
            self._note_names()
            piece = self.objects.read_state()
            self._period.append(piece)
            self._before = self.objects.reduced([self._before, piece] if self._before else [piece])
            self.objects.reset()
            self._fresh = 0

    def _note_names(self) -> None:
        """Keep the names of the metric objects that the user's own step returns.

        Other metrics are averaged.
        """
        if not self.objects_only:
            logged, mine = self.objects.numbers(self._logs), self.objects.values(everywhere=False)
            names = {
                name for name, value in mine.items() if name in logged and same(logged[name], value)
            }
            self._names = names if self._names is None else self._names & names

    def _values(self, state: State) -> Values:
        state = self.objects.over_ranks(state) if self._average else state
        # No batch was trained.
        if not state and self.objects.state():
            return {}
        values = self.objects.values_of(state)
        return (
            values
            if self._names is None
            else {name: v for name, v in values.items() if name in self._names}
        )

    def take_period(self) -> Values:
        """Return the metrics of the period that ends now."""
        self.check()
        if self.objects_only and not self._epochs and not self._period:
            values = self.objects.take(everywhere=self._average) if self._fresh else {}
            self._fresh, self.period_begins = 0, True
            return values
        self._cut()
        values = self._values(self.objects.reduced(self._period))
        self._period, self._names, self.period_begins = [], None, True
        return values

    def take_epoch(self) -> Values:
        """Return the logs of the epoch that ended, with those of a validation at its end."""
        values, self._epoch, self.epoch_ended = self._epoch, {}, False
        own = self.objects.numbers(self._logs) if not self.objects_only else {}
        logs = {**own, **values, **self.validation}
        self.validation = {}
        return logs

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint.

        It has the metric objects' states of each rank, and of all together. A run on another number
        of ranks uses the states of all together, whose sums are rounded in another order.
        """
        together = self.objects.over_ranks
        period = self.objects.reduced(self._period) if self._period else []
        own = {
            "objects": self.objects.state(),
            "period_so_far": period,
            "epoch_so_far": self._before,
        }
        return {
            "own": self.objects.of_ranks(own),
            "objects": self.objects.together(),
            "fresh": self._fresh,
            "logs": self.objects.numbers(self._logs),
            "period_so_far": together(period),
            "epoch_so_far": together(self._before),
            "names": None if self._names is None else sorted(self._names),
            "epoch": self._epoch,
            "epoch_ended": self.epoch_ended,
            "period_begins": self.period_begins,
            "validation": self.validation,
        }

    def restore(self, state: dict[str, Any], rank: int, size: int) -> list[Any] | None:
        """Restore the result of `state`, and return the state of this rank's metric objects.

        The metric objects themselves are not restored here. On another number of ranks, the chief
        gets the state of all ranks together and the others get None.
        """
        self._fresh, self._logs = state["fresh"], state["logs"]
        own = state.get("own", [])
        mine = own[rank] if len(own) == size else state if rank == 0 else {}
        self._period = [period] if (period := mine.get("period_so_far")) else []
        self._before = mine.get("epoch_so_far", [])
        names = state.get("names")
        self._names = None if names is None else set(names)
        self._epoch = state["epoch"] if isinstance(state["epoch"], dict) else {}
        self.epoch_ended, self.period_begins = state["epoch_ended"], state["period_begins"]
        self.validation = state["validation"]
        found: list[Any] | None = mine.get("objects")
        return found

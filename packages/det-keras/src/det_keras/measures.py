"""What was measured since the last report, and since the epoch began."""

from __future__ import annotations

from typing import Any

from .metrics import MetricObjects, Piece, Values, flat, mean_of, same
from .versions import keras


class Measures:
    """Position, pieces of metrics, and the last batch's logs.

    `objects_only` says that Keras's own `train_step` is used, whose logs are its metric objects'. `epoch_ended` says that an epoch
    is over of which callbacks are still to be told.
    """

    def __init__(self, model: Any, objects: MetricObjects, position: int, average: bool) -> None:
        self.objects = objects
        self.position = position
        self.objects_only = all(
            getattr(type(model), name) is getattr(keras.Model, name)
            for name in ("train_step", "compute_metrics", "get_metrics_result")
        )
        self.period_begins = True
        self.epoch_ended = False
        self.validation: Values = {}
        self._average = average
        self._fresh = 0  # batches since the metric objects were begun anew
        self._logs: Any = {}
        self._period: list[Piece] = []
        self._epoch: list[Piece] = []

    def trained(self, batches: int, logs: Any) -> None:
        self.position += batches
        self._fresh += batches
        self._logs = logs

    def end_epoch(self) -> None:
        self.cut()
        self.epoch_ended = True

    def cut(self) -> None:
        """Read the metric objects and begin them anew."""
        if not self._fresh:
            return
        if self.objects_only:
            values = self.objects.take(everywhere=self._average)
        else:
            mine = self.objects.values(everywhere=False)
            logged = flat(self._logs)
            values = self.objects.take(everywhere=self._average)
            values = {name: v for name, v in values.items() if name in logged and same(logged[name], mine[name])}
        piece = Piece(self._fresh, values)
        self._period.append(piece)
        self._epoch.append(piece)
        self._fresh = 0

    def take_period(self) -> Values:
        """Return the metrics of the period that ends here."""
        self.cut()
        values, self._period = _in_all(self._period), []
        self.period_begins = True
        return values

    def take_epoch(self) -> Values:
        """Return the logs of the epoch that ended, with those of a validation at its end."""
        values, self._epoch, self.epoch_ended = _in_all(self._epoch), [], False
        logs = {**(flat(self._logs) if not self.objects_only else {}), **values, **self.validation}
        self.validation = {}
        return logs

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the metric objects as those of all ranks together."""
        return {
            "objects": self.objects.together(),
            "fresh": self._fresh,
            "logs": flat(self._logs),
            "period": [[piece.batches, piece.values] for piece in self._period],
            "epoch": [[piece.batches, piece.values] for piece in self._epoch],
            "epoch_ended": self.epoch_ended,
            "period_begins": self.period_begins,
            "validation": self.validation,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, but for the metric objects."""
        self._fresh, self._logs = state["fresh"], state["logs"]
        self._period = [Piece(batches, values) for batches, values in state["period"]]
        self._epoch = [Piece(batches, values) for batches, values in state["epoch"]]
        self.epoch_ended, self.period_begins = state["epoch_ended"], state["period_begins"]
        self.validation = state["validation"]


def _in_all(pieces: list[Piece]) -> Values:
    names = set.intersection(*(set(piece.values) for piece in pieces)) if pieces else set()
    return {name: value for name, value in mean_of(pieces).items() if name in names}

"""The reports and checkpoints of a trial so far. Each checkpoint of `Trainer.fit` holds them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .result import Report, SavedCheckpoint

FILE = "history.json"
_LOSSES = ("validation_loss", "val_loss", "loss")


class History:
    """Holds checkpoints, and one report for each group and position.

    `metric` determines which validation is the best. Without it, the first of `validation_loss`,
    `val_loss` and `loss` that a validation reports is used. If a validation has none of them, it
    counts as the best so far.
    """

    def __init__(self, metric: str | None = None, smaller_is_better: bool = True) -> None:
        self.metric, self._smaller = metric, smaller_is_better
        self.reports: list[Report] = []
        self.checkpoints: list[SavedCheckpoint] = []
        self.best_value: float | None = None
        self.best_at: int | None = None
        self._places: dict[tuple[str, int], int] = {}

    def add(self, group: str, batches: int, metrics: Mapping[str, Any]) -> bool:
        """Add a report. Returns False if it repeats a report from before a restart."""
        report = Report(group, batches, dict(metrics))
        place = self._places.setdefault((group, batches), len(self.reports))
        if place < len(self.reports):
            self.reports[place] = report
            return False
        self.reports.append(report)
        return True

    def keep(self, checkpoint: SavedCheckpoint) -> None:
        """Add a checkpoint, unless it is known."""
        if all(known.uuid != checkpoint.uuid for known in self.checkpoints):
            self.checkpoints.append(checkpoint)

    def judge(self, batches: int, metrics: Mapping[str, Any]) -> bool:
        """Return whether a validation is the best so far, and store it if so."""
        if self.metric is None:
            self.metric = next((name for name in _LOSSES if name in metrics), None)
        if self.metric is None:
            self.best_at = batches
            return True
        value = metrics.get(self.metric)
        if not isinstance(value, (int, float)) or math.isnan(value):
            return False
        if (
            self.best_at == batches
            or self.best_value is None
            or self._better(value, self.best_value)
        ):
            self.best_value, self.best_at = value, batches
            return True
        return False

    @property
    def best(self) -> SavedCheckpoint | None:
        """The checkpoint at the best validation that was followed by a checkpoint."""
        saved = {checkpoint.batches: checkpoint for checkpoint in self.checkpoints}
        values = [
            (r.metrics.get(self.metric or ""), r.batches)
            for r in self.reports
            if r.group == "validation"
        ]
        numbers = [
            (v, b)
            for v, b in values
            if b in saved and isinstance(v, (int, float)) and not math.isnan(v)
        ]
        if not numbers:
            return saved.get(self.best_at) if self.best_at is not None else None
        value = (min if self._smaller else max)(value for value, _ in numbers)
        return saved[next(batches for number, batches in numbers if number == value)]

    def value_at(self, batches: int) -> float | None:
        """Return the metric's value of the validation at a position, or None if it has none."""
        found = [
            r.metrics.get(self.metric or "")
            for r in self.reports
            if (r.group, r.batches) == ("validation", batches)
        ]
        return found[-1] if found and isinstance(found[-1], (int, float)) else None

    def write(self, directory: Path) -> None:
        """Write the history into the directory of a checkpoint."""
        (directory / FILE).write_text(self.text())

    def text(self) -> str:
        """Return the text that `write` would write now."""
        return json.dumps({"reports": self.reports, "checkpoints": self.checkpoints})

    def read(self, text: str, until: int) -> None:
        """Restore the part of what `write` wrote that concerns the first `until` batches."""
        document = json.loads(text)
        for group, batches, metrics in document["reports"]:
            if batches <= until:
                self.add(group, batches, metrics)
                if group == "validation":
                    self.judge(batches, metrics)
        self.checkpoints = [
            SavedCheckpoint(*each) for each in document["checkpoints"] if each[1] <= until
        ]

    def _better(self, value: float, than: float) -> bool:
        return value < than if self._smaller else value > than

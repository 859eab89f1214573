"""What a search minimizes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from msgspec import Struct

from det_core.errors import MetricError

WORST = sys.float_info.max
"""The loss of a trial that ended early or reported NaN: finite, because JSON knows no infinity."""


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

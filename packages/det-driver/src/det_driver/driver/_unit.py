"""In which unit a searcher counts."""

from __future__ import annotations

import msgspec

from det_core.config import ExperimentConfig


def unit_of(config: ExperimentConfig) -> str:
    """Return the unit of the searcher's lengths: that of `max_length`, or of the time metric; batches otherwise."""
    searcher: msgspec.Struct | None = config.searcher
    length = getattr(searcher, "max_length", None) or getattr(searcher, "length_per_round", None)
    if length is not None:
        return str(length.unit)
    time_metric = getattr(searcher, "time_metric", None)
    return time_metric if time_metric in ("batches", "epochs", "records") else "batches"

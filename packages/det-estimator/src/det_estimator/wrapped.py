"""Remembers which datasets are wrapped, and at which batch they begin by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MARK = "_det_wrapped"


@dataclass(frozen=True)
class Begun:
    """The batch at which a wrapped dataset begins by itself, and its batches per epoch if known."""

    first: int = 0
    length: int | None = None


def mark(dataset: Any, begun: Begun | None = None) -> Any:
    """Remember that a dataset is wrapped. Datasets that are made from it are then wrapped too."""
    setattr(dataset, _MARK, begun or Begun())
    return dataset


def begun(dataset: Any) -> Begun | None:
    """Return the mark of a dataset or of one that it is made from, or None if none is wrapped."""
    found: Begun | None = getattr(dataset, _MARK, None)
    return found or next(filter(None, map(begun, dataset._inputs())), None)


def is_wrapped(dataset: Any) -> bool:
    """Return whether a dataset, or one that it is made from, is wrapped."""
    return begun(dataset) is not None

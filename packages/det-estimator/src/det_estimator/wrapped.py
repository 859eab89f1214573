"""Which datasets are wrapped, and where they begin by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MARK = "_det_wrapped"


@dataclass(frozen=True)
class Begun:
    """Where a wrapped dataset begins by itself, in batches, and how many of them an epoch has, where it says so."""

    first: int = 0
    length: int | None = None


def mark(dataset: Any, begun: Begun | None = None) -> Any:
    """Remember that a dataset is wrapped; one that is made of it is, too."""
    setattr(dataset, _MARK, begun or Begun())
    return dataset


def begun(dataset: Any) -> Begun | None:
    """Return what is remembered of a dataset, or of one that it is made of; None where none is wrapped."""
    found: Begun | None = getattr(dataset, _MARK, None)
    return found or next(filter(None, map(begun, dataset._inputs())), None)


def is_wrapped(dataset: Any) -> bool:
    """Return whether a dataset, or one that it is made of, is wrapped."""
    return begun(dataset) is not None

"""From the lengths of a configuration to the searcher's ints."""

from __future__ import annotations

from det_core.config import Length
from det_core.errors import ConfigError


def length_of(length: Length, place: str) -> int:
    """Return the number, in whichever unit; ConfigError where there is nothing to train."""
    if length.n < 1:
        raise ConfigError(f"{place} is {length}; give 1 or more")
    return length.n


def length_if_any(length: Length | None, place: str) -> int | None:
    """Return the number, or None where the trial decides."""
    return None if length is None else length_of(length, place)

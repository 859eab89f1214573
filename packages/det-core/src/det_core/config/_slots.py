"""Values that may be given once for all kinds of slot, or for each."""

from __future__ import annotations

from typing import Any

SLOTS = ("cpu", "cuda", "rocm")


def spread(value: Any) -> Any:
    """Return the map of kinds of slot that one image, or one list of variables, stands for; a map stays what it is."""
    return dict.fromkeys(SLOTS, value) if isinstance(value, str | list) else value

"""Where a script that is its own experiment trains."""

from __future__ import annotations

import enum

from det_core.errors import DetError


class Mode(enum.Enum):
    """LOCAL trains here and now, with one choice of hyperparameters; CLUSTER submits the experiment and follows it."""

    CLUSTER = "cluster"
    LOCAL = "local"

    @classmethod
    def of(cls, mode: Mode | str) -> Mode:
        """Return the mode that a value means; DetError where it means none."""
        try:
            return cls(mode)
        except ValueError:
            raise DetError(f"mode is {mode!r}; give Mode.LOCAL or Mode.CLUSTER") from None

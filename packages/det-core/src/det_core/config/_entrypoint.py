"""Telling a trial class from a command."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TRIAL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_trial_entrypoint(entrypoint: str | Sequence[str] | None) -> bool:
    """Return whether this is `module:Class` (`package.module:Outer.Inner` too) and not a command."""
    return isinstance(entrypoint, str) and _TRIAL.fullmatch(entrypoint) is not None

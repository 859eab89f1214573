"""How far a script has come, as it told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Steps:
    """`completed` batches, and the position of the newest validation."""

    completed: int = 0
    validated: int = -1

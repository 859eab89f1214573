"""det-slurm: experiments whose trials train in jobs of a Slurm cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .config import SlurmSettings as SlurmSettings
    from .engine import SlurmEngine as SlurmEngine

__version__ = "0.1.0"

lazy(__name__)

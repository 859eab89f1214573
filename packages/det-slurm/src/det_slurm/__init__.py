"""det-slurm: experiments whose trials train in jobs of a Slurm cluster."""

from __future__ import annotations

from .config import SlurmSettings
from .engine import SlurmEngine

__version__ = "0.1.0"
__all__ = ["SlurmEngine", "SlurmSettings"]

"""det-ray: experiments whose trials train on the machines of a Ray cluster."""

from __future__ import annotations

from .config import RaySettings
from .engine import RayEngine

__version__ = "0.1.0"
__all__ = ["RayEngine", "RaySettings"]

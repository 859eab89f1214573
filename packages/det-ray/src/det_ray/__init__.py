"""det-ray: experiments whose trials train on the nodes of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .config import RaySettings as RaySettings
    from .engine import RayEngine as RayEngine

__version__ = "0.1.0"

lazy(__name__)

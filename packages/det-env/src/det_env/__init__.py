"""det-env: an environment for each experiment, made by uv."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.lazy import lazy

if TYPE_CHECKING:
    from .maker import UvMaker as UvMaker

__version__ = "0.1.0"

lazy(__name__)

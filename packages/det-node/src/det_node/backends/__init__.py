"""The backend that needs no framework."""

from __future__ import annotations

from ._star import RankError
from .socket import Socket

__all__ = ["RankError", "Socket"]

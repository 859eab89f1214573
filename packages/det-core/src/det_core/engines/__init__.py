"""Engines: where runs are executed."""

from __future__ import annotations

from .base import Engine, RunSpec

__all__ = ["Engine", "RunSpec"]

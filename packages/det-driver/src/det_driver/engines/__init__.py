"""Engines: where runs are executed."""

from __future__ import annotations

from det_core.process import note_process

from .base import Ended, Engine, RunSpec
from .local import command, environ

__all__ = ["Ended", "Engine", "RunSpec", "command", "environ", "note_process"]

"""What `det_core.hooks.runtime` finds: the connections of a process of a run."""

from __future__ import annotations

from .backends import Socket
from .remote import connect

__all__ = ["Socket", "connect"]

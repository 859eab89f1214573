"""Packages for plugins of one's own, written from templates that work as they are."""

from __future__ import annotations

from ._names import Names
from ._write import KINDS, write_plugin

__all__ = ["KINDS", "Names", "write_plugin"]

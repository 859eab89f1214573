"""How the processes of several ranks are started, told where they meet, and supervised."""

from __future__ import annotations

from ._group import Command, Exit, Group
from .base import Launcher, Layout, Place

__all__ = ["Command", "Exit", "Group", "Launcher", "Layout", "Place"]

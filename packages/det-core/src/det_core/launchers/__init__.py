"""How the processes of several ranks are started and supervised."""

from __future__ import annotations

from ._group import Command, Exit, Group

__all__ = ["Command", "Exit", "Group"]

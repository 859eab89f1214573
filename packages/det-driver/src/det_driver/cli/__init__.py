"""The command `det`; and what commands that plugins register are given, and print with."""

from __future__ import annotations

from ._main import main
from ._output import print_json, print_table
from ._settings import Settings

__all__ = ["Settings", "main", "print_json", "print_table"]

"""The command `det`; and what commands that plugins register are given, and print with."""

from __future__ import annotations

from ._console import Settings, print_json, print_table
from ._main import main

__all__ = ["Settings", "main", "print_json", "print_table"]

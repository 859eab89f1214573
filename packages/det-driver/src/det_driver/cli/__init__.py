"""The command `det`, with the settings and print functions for commands of plugins."""

from __future__ import annotations

from ._console import VISIBLE, Settings, print_json, shown_time, write_numbers
from ._main import main, parse_remote
from ._remote import RemoteCall
from ._table import print_table

__all__ = [
    "VISIBLE",
    "RemoteCall",
    "Settings",
    "main",
    "parse_remote",
    "print_json",
    "print_table",
    "shown_time",
    "write_numbers",
]

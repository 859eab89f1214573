"""How results are printed: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import click

from det_core.errors import DetError

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, as wide as the terminal; columns of numbers are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)


def optional(module: str, what: str) -> Any:
    """Import a module that det does without; DetError, which begins with `what`, where its package is not installed."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(package):
            raise
        raise DetError(f"{what} with {package}, which is not installed; pip install {package}") from None


def shown(value: Any) -> str:
    """Return a cell's text: numbers short, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "  ".join(f"{key}={shown(inner)}" for key, inner in value.items())
    return str(value)


def ago(seconds: float | None, now: float) -> str:
    """Return how long ago a time was, in the largest unit that fits."""
    if seconds is None:
        return ""
    passed = max(0.0, now - seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= size:
            return f"{passed / size:.0f} {unit} ago"
    return f"{passed:.0f} s ago"

"""Reports as a Parquet file, with pyarrow where it is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from det_core.errors import DetError


def write(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write one row for each report, one column for each metric; return the number of rows.

    A metric that is a number everywhere is a column of numbers; any other, of text, JSON where it is no text.
    """
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyarrow"):
            raise
        raise DetError("--parquet writes with pyarrow, which is not installed; pip install pyarrow") from None
    listed = list(rows)
    names = dict.fromkeys(("trial", "group", "batches"))
    names |= {name: None for row in listed for name in row}
    table = pyarrow.table({name: _column([row.get(name) for row in listed]) for name in names})
    try:
        parquet.write_table(table, path)
    except OSError as error:
        raise DetError(
            f"cannot write {path}: {error.strerror or error}; give a file in a directory that exists"
        ) from error
    return len(listed)


def _column(values: list[Any]) -> list[Any]:
    """Return the values so that they are of one type."""
    real = [value for value in values if value is not None]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in real):
        return [v if v is None or isinstance(v, str) else json.dumps(v, default=str) for v in values]
    if any(isinstance(value, float) for value in real):
        return [None if value is None else float(value) for value in values]
    return values

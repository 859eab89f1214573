"""Changing some columns of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def assignments(changes: Mapping[str, Any], allowed: type) -> tuple[str, list[Any]]:
    """The text after SET and its parameters; the names come from a TypedDict, so that none is made up."""
    unknown = changes.keys() - allowed.__annotations__.keys()
    if unknown or not changes:
        raise TypeError(f"cannot change {sorted(unknown) or 'nothing'}; give some of {sorted(allowed.__annotations__)}")
    return ", ".join(f"{name} = ?" for name in changes), [_storable(value) for value in changes.values()]


def _storable(value: Any) -> Any:
    # A traceback may quote a file name that is no UTF-8, and SQLite would refuse it.
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value

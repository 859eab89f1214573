"""Reducing whatever a caller hands over to plain data: what JSON can hold, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ._words import Path, dotted, shown

DEEPEST = 64
Report = Callable[[Path, str], None]


def plain(value: Any, report: Report, path: Path = ()) -> Any:
    """Return a copy made of dicts with text keys, lists, text, finite numbers, booleans and None; report the rest."""
    if len(path) > DEEPEST:
        report(path[:3], f"{dotted(path[:3])} is nested more than {DEEPEST} deep; flatten it")
        return None
    if isinstance(value, Mapping):
        return {key: plain(item, report, (*path, key)) for key, item in value.items() if _is_text(key, report, path)}
    if isinstance(value, list | tuple):
        return [plain(item, report, (*path, index)) for index, item in enumerate(value)]
    return _leaf(value, report, path)


def _is_text(key: Any, report: Report, path: Path) -> bool:
    if isinstance(key, str):
        return True
    where = f" of {dotted(path)}" if path else ""
    report(path, f"the key {shown(key)}{where} is not text; put it in quotes")
    return False


def _leaf(value: Any, report: Report, path: Path) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        report(path, f"{dotted(path)} is {value}; give a finite number")
        return None
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    if value is not None:
        report(path, f"{dotted(path)} is {shown(value)}; give text, a number, true, false, null, a list or a map")
    return None

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
    where = f" of {dotted(path)}" if path else ""
    if not isinstance(key, str):
        report(path, f"the key {shown(key)}{where} is not text; put it in quotes")
    elif not _is_unicode(key):
        report(path, f"the key {shown(key)}{where} holds half a character (a surrogate); write it in full")
    else:
        return True
    return False


def _leaf(value: Any, report: Report, path: Path) -> Any:
    problem = _problem(value)
    if problem:
        report(path, f"{dotted(path) or 'the configuration'} is {problem}")
        return None
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    return value if kind is None or type(value) is kind else kind(value)


def _problem(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value}; give a finite number"
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**64 else f"{shown(value)}; give a number that fits in 64 bits"
    if isinstance(value, str):
        return None if _is_unicode(value) else f"{shown(value)}, with half a character (a surrogate); write it in full"
    return f"{shown(value)}; give text, a number, true, false, null, a list or a map"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

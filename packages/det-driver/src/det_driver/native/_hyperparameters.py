"""Hyperparameters and their ranges, for `config["hyperparameters"]` of a script: each is what the YAML would say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Range = dict[str, Any]


def Constant(value: Any) -> Range:
    """Return one value, whatever it is."""
    return {"type": "const", "val": value}


def Integer(minval: int, maxval: int, *, count: int | None = None) -> Range:
    """Return the whole numbers from `minval` to `maxval`, both included; a grid takes `count` of them."""
    return _range("int", minval, maxval, count)


def Double(minval: float, maxval: float, *, count: int | None = None) -> Range:
    """Return the numbers between two others, evenly distributed; a grid takes `count` of them."""
    return _range("double", minval, maxval, count)


def Log(minval: float, maxval: float, base: float = 10.0, *, count: int | None = None) -> Range:
    """Return `base` to the power of the numbers between `minval` and `maxval`; a grid takes `count` of them."""
    return {**_range("log", minval, maxval, count), "base": base}


def Categorical(vals: Sequence[Any]) -> Range:
    """Return one of `vals`, all equally likely."""
    return {"type": "categorical", "vals": list(vals)}


def _range(kind: str, minval: float, maxval: float, count: int | None) -> Range:
    return {"type": kind, "minval": minval, "maxval": maxval, **({} if count is None else {"count": count})}

"""Hyperparameters and their ranges, for `config["hyperparameters"]` of a script.

Each function returns what the YAML would say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Range = dict[str, Any]
When = Mapping[str, Any] | None
"""Other hyperparameters by dotted names, with the value, or the list of values, of each."""


def Constant(value: Any, *, when: When = None) -> Range:
    """Return one value of any type."""
    return _range("const", when, val=value)


def Integer(
    minval: int,
    maxval: int,
    *,
    count: int | None = None,
    step: int | None = None,
    log: bool = False,
    when: When = None,
) -> Range:
    """Return the whole numbers from `minval` to `maxval`, both included, or every `step`-th.

    A grid takes `count` of them. With `log`, each order of magnitude is equally likely.
    """
    return _range(
        "int", when, minval=minval, maxval=maxval, count=count, step=step, log=log or None
    )


def Double(
    minval: float,
    maxval: float,
    *,
    count: int | None = None,
    step: float | None = None,
    when: When = None,
) -> Range:
    """Return the numbers from `minval` to `maxval`, evenly distributed or in steps.

    A grid takes `count` of them.
    """
    return _range("double", when, minval=minval, maxval=maxval, count=count, step=step)


def Log(
    minval: float, maxval: float, base: float = 10.0, *, count: int | None = None, when: When = None
) -> Range:
    """Return `base` to the power of the numbers between `minval` and `maxval`.

    A grid takes `count` of them.
    """
    return _range("log", when, minval=minval, maxval=maxval, count=count, base=base)


def Categorical(vals: Sequence[Any], *, ordered: bool = False, when: When = None) -> Range:
    """Return one of `vals`, all equally likely. Give `ordered` if adjacent values are similar."""
    return _range("categorical", when, vals=list(vals), ordered=ordered or None)


def _range(kind: str, when: When, **keys: Any) -> Range:
    given = {key: value for key, value in keys.items() if value is not None or key == "val"}
    return {"type": kind, **given, **({} if when is None else {"when": dict(when)})}

"""Discrete ranges: ranges in steps, and whole numbers on a logarithmic scale."""

from __future__ import annotations

import math
from decimal import Decimal

from det_core.config import Double, Int


def count_steps(hp: Int | Double) -> int:
    """Return the number of values of a range in steps. The step of an `int` is 1 by default."""
    if isinstance(hp, Int):
        return (hp.maxval - hp.minval) // (hp.step or 1) + 1
    assert hp.step is not None
    return int((_exact(hp.maxval) - _exact(hp.minval)) / _exact(hp.step)) + 1


def step_at(hp: Int | Double, number: int) -> int | float:
    """Return the value with this number, from 0, of a range in steps.

    Decimal arithmetic keeps 0.3 from becoming 0.30000000000000004.
    """
    if isinstance(hp, Int):
        return hp.minval + number * (hp.step or 1)
    assert hp.step is not None
    return float(_exact(hp.minval) + number * _exact(hp.step))


def int_at(hp: Int, at: float) -> int:
    """Return the whole number at a place, from 0 to 1, of a logarithmic range."""
    value = int(math.exp(math.log(hp.minval) + at * math.log((hp.maxval + 1) / hp.minval)))
    return min(max(value, hp.minval), hp.maxval)


def int_place(hp: Int, value: int) -> float:
    """Return the middle of the places of a whole number in a logarithmic range."""
    return math.log((value + 0.5) / hp.minval) / math.log((hp.maxval + 1) / hp.minval)


def _exact(number: float) -> Decimal:
    return Decimal(repr(float(number)))

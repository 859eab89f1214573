"""Parts of a search space that are not ranges: conditions, steps and constraints."""

from __future__ import annotations

from ._conditions import Conditions, leaves, same, wanted
from ._expressions import Expression, Lookup, Undefined, lookup_in, needs_backticks
from ._limits import MOST_DRAWS, Limits, any_values
from ._steps import count_steps, int_at, int_place, step_at

__all__ = [
    "MOST_DRAWS",
    "Conditions",
    "Expression",
    "Limits",
    "Lookup",
    "Undefined",
    "any_values",
    "count_steps",
    "int_at",
    "int_place",
    "leaves",
    "lookup_in",
    "needs_backticks",
    "same",
    "step_at",
    "wanted",
]

"""The ranges from which a searcher takes hyperparameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct


class Const(Struct, frozen=True, tag_field="type", tag="const"):
    """One value, whatever it is; a bare value in YAML means the same."""

    val: Any
    """The value; also a list or a map."""


class Int(Struct, frozen=True, tag_field="type", tag="int"):
    """A whole number from `minval` to `maxval`, both included."""

    minval: int
    """The smallest value."""
    maxval: int
    """The largest value."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced; `grid` needs it."""


class Double(Struct, frozen=True, tag_field="type", tag="double"):
    """A number between `minval` and `maxval`, evenly distributed."""

    minval: float
    """The lower bound."""
    maxval: float
    """The upper bound."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced; `grid` needs it."""


class Log(Struct, frozen=True, tag_field="type", tag="log"):
    """`base` to the power of a number between `minval` and `maxval`: the bounds are exponents."""

    minval: float
    """The lower exponent."""
    maxval: float
    """The upper exponent."""
    base: Annotated[float, Meta(gt=0)] = 10.0
    """What is raised to the exponent."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced in the exponent; `grid` needs it."""


class Categorical(Struct, frozen=True, tag_field="type", tag="categorical"):
    """One of `vals`, all equally likely."""

    vals: Annotated[tuple[Any, ...], Meta(min_length=1)]
    """The values to choose from."""


if TYPE_CHECKING:
    Hyperparameter = Const | Int | Double | Log | Categorical | dict[str, "Hyperparameter"]
else:  # typing cannot evaluate an alias that contains itself
    Hyperparameter = Const | Int | Double | Log | Categorical | dict

RANGES: dict[str, type[Struct]] = {
    "const": Const,
    "int": Int,
    "double": Double,
    "log": Log,
    "categorical": Categorical,
}

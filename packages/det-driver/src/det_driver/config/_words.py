"""How errors put what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from det_core.config.fields import Type, base_of, choices_of, item_of, type_of

_PLAIN = {bool: "true or false", dict: "a map", Any: "any value"}


def expected(type_: Type) -> str:
    """Return what a value of this type would be, to follow 'give'."""
    if "expects" in type_.marks:
        return str(type_.marks["expects"])
    return " or ".join(_expected(arm, type_) for arm in type_.arms)


def _expected(arm: Any, type_: Type) -> str:
    base = base_of(arm)
    if base is Annotated:
        return expected(type_of(arm))
    if base is int:
        return _number("a whole number", type_.bounds)
    if base is float:
        return _number("a number", type_.bounds)
    if base is str:
        return _text(type_.bounds)
    if base is Literal:
        return "one of " + ", ".join(str(choice) for choice in choices_of(arm))
    if base is list:
        inner = expected(item_of(arm)) if item_of(arm).arm is not Any else "values"
        return f"a list of {inner}" if inner in ("text", "values") else f"a list, each item {inner}"
    return _PLAIN.get(base, "a map" if hasattr(arm, "__struct_fields__") else "a value that it takes")


def _text(bounds: dict[str, Any]) -> str:
    if "pattern" in bounds:
        return f"text that matches {bounds['pattern']}"
    if "max_length" in bounds:
        return f"text of at most {bounds['max_length']} characters"
    return f"text of at least {bounds['min_length']} characters" if "min_length" in bounds else "text"


def _number(noun: str, bounds: dict[str, Any]) -> str:
    low, high, above, below = (bounds.get(name) for name in ("ge", "le", "gt", "lt"))
    if low is not None and high is not None:
        return f"{noun} from {low} to {high}"
    least = f", {low} or more" if low is not None else f" above {above}" if above is not None else ""
    most = f", {high} or less" if high is not None else f" below {below}" if below is not None else ""
    return f"{noun}{least}{' and' if least and most else ''}{most}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was most likely meant to be."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None

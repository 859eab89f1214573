"""The sentence for each mistake: the error and the fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from msgspec import Struct

from det_core.config import ENGINES, SEARCHERS, STORAGES, UNITS, ExperimentConfig
from det_core.config.faults import Fault, dotted, shown
from det_core.config.fields import Type, base_of, choices_of, fields_of, is_struct, item_of, type_of
from det_core.errors import nearest

_PLAIN = {bool: "true or false", dict: "a map", Any: "any value"}
_KNOWN = (Annotated, bool, int, float, str, list, dict, Literal, Any)
_DOCUMENTED = "a number of batches, {batches: n}, {records: n} or {epochs: n}"
_BY_KIND = {"searcher": SEARCHERS, "checkpoint_storage": STORAGES, "engine": ENGINES}
_REPLACED = {"sync_halving": "async_halving"}
"""Former searchers, and their replacements."""


def put(faults: Sequence[Fault]) -> list[tuple[Fault, str]]:
    """Return each fault with its sentence.

    A missing key is not reported if a misspelt key was likely meant to be that key.
    """
    suspects = {(*fault.path[:-1], _meant(fault)) for fault in faults if fault.kind == "unknown"}
    return [(f, _SENTENCES[f.kind](f)) for f in faults if not (f.late and f.path in suspects)]


def _meant(fault: Fault) -> str | None:
    """Return the known key that an unknown one was most likely meant to be.

    Returns None for a key of another section.
    """
    known = [*fault.names, *([fault.tag] if fault.tag else [])]
    elsewhere = len(fault.path) == 1 and fault.path[0] in _homes()
    return None if elsewhere else nearest(str(fault.path[-1]), known)


def _unknown(fault: Fault) -> str:
    if len(fault.path) == 1 and fault.path[0] in _homes():
        way_out = f"it belongs under {_homes()[str(fault.path[0])]!r}"
    elif near := _meant(fault):
        way_out = f"did you mean {near!r}?"
    else:
        keys = ", ".join(sorted(fault.names)) or "none"
        way_out = (
            f"known there: {keys}" if fault.path[1:] else "settings of your own belong under 'data'"
        )
    return f"unknown key {dotted(fault.path)!r}; {way_out}"


@cache
def _homes() -> dict[str, str]:
    """Return the section of each key, for keys that were written one level too high."""
    found: dict[str, str] = {}
    for section, field in fields_of(ExperimentConfig).items():
        structs: list[type[Struct]] = [arm for arm in field.type.arms if is_struct(arm)]
        structs += _BY_KIND.get(field.type.marks.get("kind", ""), {}).values()
        for struct in structs if "honoured" not in field.type.marks else ():
            for key in fields_of(struct):
                found.setdefault(key, section)
    return found


def _missing(fault: Fault) -> str:
    needed = (
        fault.type.marks.get("needed") or f"give {expected(fault.type)}" if fault.type else None
    )
    return (
        f"{dotted(fault.path)} is missing;"
        f" {needed or 'give ' + 'one of ' * (fault.names[1:] != ()) + ', '.join(fault.names)}"
    )


def _value(fault: Fault) -> str:
    assert fault.type is not None
    at, type_ = dotted(fault.path), _arm_for(fault.value, fault.type)
    hidden = "secret" in type_.marks
    what = "not what it takes" if hidden else shown(fault.value)
    if base_of(type_.arm) not in _KNOWN and not is_struct(type_.arm):
        return f"{at} is {what}: {fault.says}"
    if isinstance(fault.value, list) and "min_length" in type_.bounds:
        return f"{at} is {what}; give at least {type_.bounds['min_length']}"
    near = (
        nearest(fault.value, map(str, choices_of(type_.arm)))
        if isinstance(fault.value, str)
        else None
    )
    if near:
        return f"{at} is {what}; did you mean {near!r}?"
    quoted = (
        isinstance(fault.value, int | float)
        and str in type_.arms
        and not hidden
        and "expects" not in type_.marks
    )
    return f"{at} is {what}; give {expected(type_)}" + (
        f", such as '{shown(fault.value)}'" if quoted else ""
    )


def _arm_for(value: Any, type_: Type) -> Type:
    """Return the annotated member of a union that a value was meant for, or the whole type."""
    arms = [type_of(arm) for arm in type_.arms if base_of(arm) is Annotated]
    return next((arm for arm in arms if _fits(value, base_of(arm.arm))), type_)


def _fits(value: Any, base: Any) -> bool:
    if base in (int, float):
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (base is float or value == value // 1)
        )
    return isinstance(base, type) and isinstance(value, base)


def _length(fault: Fault) -> str:
    give = f"a number of {fault.tag}" if fault.names else _DOCUMENTED
    return f"{dotted(fault.path)} is {shown(fault.value)}; give {give}"


def _few(fault: Fault) -> str:
    never = ", or 0 for never" if fault.type and fault.type.marks["kind"] == "period" else ""
    return (
        f"{dotted(fault.path)} is {shown(fault.value)}; give a positive number of"
        f" {fault.tag}{never}"
    )


def _unit(fault: Fault) -> str:
    near = nearest(str(fault.path[-1]), UNITS)
    return f"unknown key {dotted(fault.path)!r}; " + (
        f"did you mean {near!r}?" if near else f"give {_DOCUMENTED}"
    )


def _name(fault: Fault) -> str:
    section, known = fault.path[0], ", ".join(fault.names)
    near = nearest(fault.value, fault.names) if isinstance(fault.value, str) else None
    if section == "searcher" and isinstance(fault.value, str) and fault.value in _REPLACED:
        return (
            f"{dotted(fault.path)} is {fault.value!r}, which is gone; use"
            f" {_REPLACED[fault.value]!r} in its place"
        )
    if section == "hyperparameters":
        other = f"give one of {known}, or wrap the map: {{type: const, val: {{…}}}}"
        way_out = f"did you mean {near!r}?" if near else other
    else:
        way_out = f"did you mean {near!r}? known: {known}" if near else f"give one of {known}"
    return f"{dotted(fault.path)} is {shown(fault.value)}; {way_out}"


def _plugin(fault: Fault) -> str:
    name = str(fault.path[-1])
    near = nearest(name, fault.names)
    known = (
        f"did you mean {near!r}?"
        if near
        else f"plugins with settings: {', '.join(fault.names) or 'none'}"
    )
    return f"{fault.says}; {known}"


_SENTENCES: dict[str, Callable[[Fault], str]] = {
    "few": _few,
    "length": _length,
    "missing": _missing,
    "name": _name,
    "plugin": _plugin,
    "refused": str,
    "rule": str,
    "shape": str,
    "unit": _unit,
    "units": str,
    "unknown": _unknown,
    "value": _value,
}


def expected(type_: Type) -> str:
    """Return a description of the values of a type, to follow 'give'."""
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
    return _PLAIN.get(
        base, "a map" if hasattr(arm, "__struct_fields__") else "a value that it takes"
    )


def _text(bounds: dict[str, Any]) -> str:
    if "pattern" in bounds:
        return f"text that matches {bounds['pattern']}"
    if "max_length" in bounds:
        return f"text of at most {bounds['max_length']} characters"
    return (
        f"text of at least {bounds['min_length']} characters" if "min_length" in bounds else "text"
    )


def _number(noun: str, bounds: dict[str, Any]) -> str:
    low, high, above, below = (bounds.get(name) for name in ("ge", "le", "gt", "lt"))
    if low is not None and high is not None:
        return f"{noun} from {low} to {high}"
    least = (
        f", {low} or more" if low is not None else f" above {above}" if above is not None else ""
    )
    most = (
        f", {high} or less" if high is not None else f" below {below}" if below is not None else ""
    )
    return f"{noun}{least}{' and' if least and most else ''}{most}"

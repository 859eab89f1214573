"""Reads plain data into structs, collecting every problem instead of stopping at the first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_origin

import msgspec
from msgspec import Struct

from ._extensions import Extensions
from ._homes import homes
from ._types import Field, Type, base_of, choices_of, fields_of, is_struct, item_of, type_of
from ._words import Path, dotted, expected, nearest, shown

INVALID: Any = type("Invalid", (), {"__repr__": lambda _: "INVALID", "__bool__": lambda _: False})()
"""Stands for what could not be read; never leaves this package."""


@dataclass(frozen=True)
class Problem:
    """A mistake and its place; `late` ones concern completeness, the others the shape."""

    path: Path
    text: str
    late: bool = False
    of_key: bool = False


KindReader = Callable[["Reader", Any, Type, Path], Any]
Rule = Callable[[Any, str], "list[tuple[Path, str]]"]


class Reader:
    """One reading of one configuration.

    `kinds` read what the types alone cannot say. `rules` look at a struct once it is read, given its dotted path, and
    return problems, each with a path from the struct. What cannot be read is left at its default, so that the rest
    can still be looked at.
    """

    def __init__(self, extensions: Extensions, kinds: dict[str, KindReader], rules: dict[type[Struct], Rule]) -> None:
        self.extensions = extensions
        self.problems: list[Problem] = []
        self.unhonoured: list[str] = []
        self._kinds, self._rules = kinds, rules
        self._suspects: set[Path] = set()

    def report(self, path: Path, text: str, *, late: bool = False, of_key: bool = False) -> None:
        """Note a problem."""
        self.problems.append(Problem(path, text, late, of_key))

    def read(self, value: Any, type_: Type, path: Path) -> Any:
        """Return `value` as `type_`, or INVALID with the problems reported."""
        if value is None and type_.optional:
            return None
        if "kind" in type_.marks:
            return self._kinds[type_.marks["kind"]](self, value, type_, path)
        for arm in type_.arms:
            if _fits(value, arm):
                return self._read_arm(value, arm, type_, path)
        return self._wrong(value, type_, path)

    def struct(self, value: Any, cls: type[Struct], path: Path, *, tag: str | None = None) -> Any:
        """Return the map `value` as the struct `cls`; `tag` is the key that told which struct."""
        fields = fields_of(cls)
        rest = next((f for f in fields.values() if "rest" in f.type.marks), None)
        known = {key: f for key, f in fields.items() if f is not rest}
        strangers = {key: item for key, item in value.items() if key not in known and key != tag}
        found: dict[str, Any] = {rest.name: strangers} if rest else {}
        if not rest:
            self._unknown(strangers, known, cls, path, tag)
        for field in known.values():
            if (read := self._field(value, field, path)) is not INVALID:
                found[field.name] = read
        return self._build(cls, found, path)

    def _field(self, value: dict[str, Any], field: Field, path: Path) -> Any:
        given = value.get(field.key)
        where = (*path, field.key)
        asked_for = field.required or "needed" in field.type.marks
        null_is_a_value = field.type.optional and (field.required or not asked_for)
        if field.key not in value or (given is None and not null_is_a_value):
            if asked_for:
                self.missing(where, field.type.marks.get("needed") or f"give {expected(field.type)}")
            return INVALID
        read = self.read(given, field.type, where)
        if field.type.marks.get("honoured") == "no" and read is not INVALID and read != field.default:
            self.unhonoured.append(dotted(where))
        return read

    def missing(self, path: Path, way_out: str) -> None:
        """Note that a key is missing, unless a misspelt one stands in its place."""
        if path not in self._suspects:
            self.report(path, f"{dotted(path)} is missing; {way_out}", late=True)

    def _unknown(
        self, strangers: dict[str, Any], known: dict[str, Field], cls: type[Struct], path: Path, tag: str | None
    ) -> None:
        for key in strangers:
            where = (*path, key)
            if not path and key in homes():
                way_out = f"it belongs under {homes()[key]!r}"
            elif near := nearest(key, [*known, *([tag] if tag else [])]):
                self._suspects.add((*path, near))
                way_out = f"did you mean {near!r}?"
            else:
                keys = ", ".join(sorted(known)) or "none"
                way_out = f"known there: {keys}" if path else "settings of your own belong under 'data'"
            self.report(where, f"unknown key {dotted(where)!r}; {way_out}", of_key=True)

    def _build(self, cls: type[Struct], found: dict[str, Any], path: Path) -> Any:
        if any(f.required and f.name not in found for f in fields_of(cls).values()):
            return INVALID
        try:
            built = cls(**found)
        except (TypeError, ValueError) as error:  # what a stranger's __post_init__ refuses
            self.report(path, f"{dotted(path)}: {error}")
            return INVALID
        troubled = [p.path for p in self.problems]
        rule = self._rules.get(cls)
        for relative, text in rule(built, dotted(path)) if rule else ():
            where = (*path, *relative)
            if where not in self._suspects and not any(p[: len(where)] == where for p in troubled):
                self.report(where, text, late=True)
        return built

    def _read_arm(self, value: Any, arm: Any, type_: Type, path: Path) -> Any:
        base = base_of(arm)
        if base is Annotated:
            return self.read(value, type_of(arm), path)
        if is_struct(arm):
            return self.struct(value, arm, path)
        if base is list:
            return self._list(value, arm, type_, path)
        if base is dict:
            read = {key: self.read(item, item_of(arm), (*path, key)) for key, item in value.items()}
            return {key: item for key, item in read.items() if item is not INVALID}
        if base is Literal:
            return value if value in choices_of(arm) else self._wrong(value, type_, path)
        if base not in (int, float, str, bool, Any):
            return self._foreign(value, arm, path)
        read = base(value) if base in (int, float) else value
        return read if _within(read, type_.bounds) else self._wrong(value, type_, path)

    def _list(self, value: list[Any], arm: Any, type_: Type, path: Path) -> Any:
        if len(value) < type_.bounds.get("min_length", 0):
            self.report(path, f"{dotted(path)} is {shown(value)}; give at least {type_.bounds['min_length']}")
            return INVALID
        items = (self.read(item, item_of(arm), (*path, index)) for index, item in enumerate(value))
        kept = [item for item in items if item is not INVALID]
        return kept if (get_origin(arm) or arm) is list else tuple(kept)

    def _foreign(self, value: Any, arm: Any, path: Path) -> Any:
        try:
            return msgspec.convert(value, arm)
        except msgspec.ValidationError as error:
            self.report(path, f"{dotted(path)} is {shown(value)}: {error}")
            return INVALID

    def _wrong(self, value: Any, type_: Type, path: Path) -> Any:
        hidden = "secret" in type_.marks
        what = "not what it takes" if hidden else shown(value)
        way_out = f"give {expected(type_)}"
        if isinstance(value, int | float) and str in type_.arms and not hidden and "expects" not in type_.marks:
            way_out += f", such as '{shown(value)}'"
        near = nearest(value, map(str, choices_of(type_.arm))) if isinstance(value, str) else None
        self.report(path, f"{dotted(path)} is {what}; {f'did you mean {near!r}?' if near else way_out}")
        return INVALID


def _fits(value: Any, arm: Any) -> bool:
    if get_origin(arm) is Annotated:
        return any(_fits(value, inner) for inner in type_of(arm).arms)
    base = base_of(arm)
    if base is Any:
        return True
    if is_struct(arm) or base is dict:
        return isinstance(value, dict)
    if base is Literal:
        return type(value) in {type(choice) for choice in choices_of(arm)}
    if base is int:
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if base is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, base) if base in (bool, str, list) else True


def _within(value: Any, bounds: dict[str, Any]) -> bool:
    low, above = bounds.get("ge"), bounds.get("gt")
    high, below = bounds.get("le"), bounds.get("lt")
    return not (
        (low is not None and value < low)
        or (above is not None and value <= above)
        or (high is not None and value > high)
        or (below is not None and value >= below)
        or ("pattern" in bounds and re.search(bounds["pattern"], value) is None)
        or ("min_length" in bounds and len(value) < bounds["min_length"])
        or ("max_length" in bounds and len(value) > bounds["max_length"])
    )

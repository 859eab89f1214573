"""What a field's annotation says beside its type (each mark is a `msgspec.Meta`), and a form of it that one can walk."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

CLUSTER = Meta(extra={"honoured": "no"})
"""Accepted, but only the master of a cluster could act on it."""

CONTAINED = Meta(extra={"honoured": "with `environment.container`"})
"""Accepted, and acted on where an image is run."""

RETIRED = Meta(extra={"honoured": "no", "retired": True})
"""Accepted for the sake of old files; nothing acts on it any more."""

SECRET = Meta(extra={"secret": True})
"""Never shown: neither in a printed configuration nor in an error."""

SECRETS = Meta(extra={"secrets": True})
"""A free map: what its keys call secret, such as `secret_key`, is never shown."""

REST = Meta(extra={"rest": True})
"""A map that takes in the keys that no other field of its struct has."""


def partly(how: str) -> Meta:
    """Honoured in part; `how` is what the reference page says of it."""
    return Meta(extra={"honoured": how})


def needed(way_out: str) -> Meta:
    """Required of a complete configuration; `way_out` ends the error when it is missing."""
    return Meta(extra={"needed": way_out})


def expects(phrase: str) -> Meta:
    """Use `phrase` for what would be right, instead of what the type alone suggests."""
    return Meta(extra={"expects": phrase})


def kind(name: str) -> Meta:
    """Read and merge by the rules of `name`: hyperparameters, searcher, checkpoint_storage, plugins, length, period."""
    return Meta(extra={"kind": name})


def joined(key: str | None = None) -> Meta:
    """In a merge, put the template's items before the user's; an item of the same `key` (or an equal one) gives way."""
    return Meta(extra={"joined": key})


_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


@dataclass(frozen=True)
class Type:
    """A type without its annotations: its arms (more than one in a union), bounds, marks, whether None is one, and the whole."""

    arms: tuple[Any, ...]
    bounds: dict[str, Any]
    marks: dict[str, Any]
    optional: bool
    hint: Any

    @property
    def arm(self) -> Any:
        """The only arm, or the first."""
        return self.arms[0]


@dataclass(frozen=True)
class Field:
    """One key of a struct."""

    name: str
    key: str
    type: Type
    required: bool
    default: Any


@cache
def type_of(hint: Any) -> Type:
    """Take an annotation apart."""
    bounds: dict[str, Any] = {}
    marks: dict[str, Any] = {}
    optional = False
    whole = hint
    while True:
        if get_origin(hint) is Annotated:
            hint, *metas = get_args(hint)
            for meta in metas:
                if isinstance(meta, Meta):
                    bounds = {n: v for n in _BOUNDS if (v := getattr(meta, n)) is not None} | bounds
                    marks = (meta.extra or {}) | marks
            continue
        arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if NoneType not in arms or len(arms) == 1:
            return Type(arms, bounds, marks, optional or arms[0] in (Any, NoneType), whole)
        optional = True
        hint = Union[tuple(arm for arm in arms if arm is not NoneType)]  # noqa: UP007 - built, not written


@cache
def fields_of(struct: type[Struct]) -> dict[str, Field]:
    """Return the fields of a struct by the key under which each is written."""
    return {
        info.encode_name: Field(info.name, info.encode_name, type_of(info.type), info.required, _default(info))
        for info in msgspec.structs.fields(struct)
    }


def _default(info: msgspec.structs.FieldInfo) -> Any:
    if info.default_factory is not NODEFAULT:
        return info.default_factory()
    return None if info.default is NODEFAULT else info.default


def is_struct(hint: Any) -> bool:
    """Return whether a hint is a struct's class."""
    return isinstance(hint, type) and issubclass(hint, Struct)


def base_of(hint: Any) -> Any:
    """Return `list` for `tuple[int, ...]` and `list[int]`, `dict` for `dict[str, int]`, `Literal`, or the hint itself."""
    origin = get_origin(hint) or hint
    return list if origin in (tuple, list, typing.Sequence) else origin


def item_of(hint: Any) -> Type:
    """Return the type of the items of a sequence, or of the values of a map."""
    args = [arg for arg in get_args(hint) if arg is not ...]
    return type_of(args[-1] if args else Any)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Return the values of a `Literal`."""
    return get_args(hint) if get_origin(hint) is Literal else ()

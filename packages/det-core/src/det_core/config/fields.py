"""The marks of a field's annotation, each a `msgspec.Meta`, and types in a form for walking."""

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
"""Accepted in old files, without effect."""

# It marks secrets, and is none.
SECRET = Meta(extra={"secret": True})  # nosec B105
"""Never shown: neither in a printed configuration nor in an error."""

SECRETS = Meta(extra={"secrets": True})
"""A free map. Values whose keys name a secret, such as `secret_key`, are never shown."""

NAMED_SECRETS = Meta(extra={"named_secrets": True})
"""A map of the user's own. Values whose keys surely name a secret, such as `api_key`, are never
shown. A `pad_token` is none."""

REST = Meta(extra={"rest": True})
"""A map of the keys that no other field of its struct has."""


def partly(how: str) -> Meta:
    """Mark a field as honoured in part. The reference page shows `how`."""
    return Meta(extra={"honoured": how})


def needed(way_out: str) -> Meta:
    """Mark a field as required in a complete configuration.

    `way_out` ends the error if it is missing.
    """
    return Meta(extra={"needed": way_out})


def expects(phrase: str) -> Meta:
    """Mark a field with the `phrase` that errors use for a correct value, instead of its type."""
    return Meta(extra={"expects": phrase})


def kind(name: str) -> Meta:
    """Mark a field to be read and merged by the rules of `name`, such as searcher or length."""
    return Meta(extra={"kind": name})


def joined(key: str | None = None) -> Meta:
    """Mark a list to be merged: the template's items come before the user's.

    An item of the template gives way to one with the same `key`, or to an equal one.
    """
    return Meta(extra={"joined": key})


_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


@dataclass(frozen=True)
class Type:
    """A type without its annotations.

    - `arms`: its types, more than one in a union.
    - `bounds`: the limits of its values.
    - `marks`: the marks of the annotation.
    - `optional`: whether None is allowed.
    - `hint`: the whole annotation.
    """

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
    """Parse an annotation."""
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
        # The union is built here, not written.
        hint = Union[tuple(arm for arm in arms if arm is not NoneType)]  # noqa: UP007


@cache
def fields_of(struct: type[Struct]) -> dict[str, Field]:
    """Return the fields of a struct by their keys in YAML."""
    return {
        info.encode_name: Field(
            info.name, info.encode_name, type_of(info.type), info.required, _default(info)
        )
        for info in msgspec.structs.fields(struct)
    }


def _default(info: msgspec.structs.FieldInfo) -> Any:
    if info.default_factory is not NODEFAULT:
        return info.default_factory()
    return None if info.default is NODEFAULT else info.default


def is_struct(hint: Any) -> bool:
    """Return whether a hint is a struct class."""
    return isinstance(hint, type) and issubclass(hint, Struct)


def base_of(hint: Any) -> Any:
    """Return the container type of a hint, or the hint itself.

    That is `list` for `tuple[int, ...]` and `list[int]`, `dict` for `dict[str, int]`, and
    `Literal`.
    """
    origin = get_origin(hint) or hint
    return list if origin in (tuple, list, typing.Sequence) else origin


def item_of(hint: Any) -> Type:
    """Return the type of the items of a sequence, or of the values of a map."""
    args = [arg for arg in get_args(hint) if arg is not ...]
    return type_of(args[-1] if args else Any)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Return the values of a `Literal`."""
    return get_args(hint) if get_origin(hint) is Literal else ()

"""From a configuration back to plain data and JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Struct

from ._searchers import Length
from .fields import Field, fields_of

MASK = "********"
_GIVEN = re.compile(r"(?is)\b([\w-]*(?:secret|token|passw(?:or)?d|passphrase|credentials?|[_-]key)(?:[_-][\w-]*)?)=.+")
_IN_A_URL = re.compile(r"(://[^/:@\s]*):[^/@\s]+@")


def to_builtins(value: Any, *, masked: bool = False) -> Any:
    """Return a configuration, or any part of one, as plain data; with `masked`, secrets are blotted out."""
    if isinstance(value, Length):
        return {value.unit: value.n}
    if isinstance(value, Struct):
        return _struct(value, masked)
    if isinstance(value, dict):
        return {key: to_builtins(item, masked=masked) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtins(item, masked=masked) for item in value]
    if isinstance(value, str):
        return _blotted(value) if masked else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return msgspec.to_builtins(value)


def _struct(value: Struct, masked: bool) -> dict[str, Any]:
    config = value.__struct_config__
    plain: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field else {}
    for field in fields_of(type(value)).values():
        item = getattr(value, field.name)
        if "rest" in field.type.marks:
            plain |= to_builtins(item, masked=masked)
        else:
            plain[field.key] = MASK if masked and _is_secret(field, item) else to_builtins(item, masked=masked)
    return plain


def _blotted(text: str) -> str:
    """Return `HF_TOKEN=…` and `https://user:password@host` without the secret; what the name says decides."""
    return _IN_A_URL.sub(rf"\1:{MASK}@", _GIVEN.sub(rf"\1={MASK}", text))


def _is_secret(field: Field, item: Any) -> bool:
    return item is not None and "secret" in field.type.marks


def masked(config: Any) -> dict[str, Any]:
    """Return a configuration as plain data with its secrets blotted out, fit to be printed and to travel with checkpoints."""
    plain: dict[str, Any] = to_builtins(config, masked=True)
    return plain


def without_secrets(text: str, config: Any) -> str:
    """Return a text, such as the file that a configuration was read from, with the configuration's secrets blotted out."""
    for secret in sorted(_secrets(to_builtins(config), masked(config)), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _secrets(plain: Any, blotted: Any) -> set[str]:
    if isinstance(plain, str) and plain != blotted:
        before, _, after = str(blotted).partition(MASK)
        return {plain[len(before) : len(plain) - len(after)]} - {""}
    pairs: list[Any] = []
    if isinstance(plain, dict):
        pairs = [(value, blotted[key]) for key, value in plain.items()]
    elif isinstance(plain, list):
        pairs = list(zip(plain, blotted, strict=True))
    return {secret for pair in pairs for secret in _secrets(*pair)}


def to_json(config: Any) -> str:
    """Return the complete configuration as JSON, secrets and all; `from_json` reads it back."""
    return json.dumps(to_builtins(config), allow_nan=False)

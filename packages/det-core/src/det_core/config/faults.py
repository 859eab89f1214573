"""The faults of a configuration, and how errors show a path and a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .fields import Type

Path = tuple[str | int, ...]
_LONGEST = 60


def dotted(path: Path) -> str:
    """Return a path in its usual form: `bind_mounts[0].host_path`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            # A key with a line break must not break the line.
            name = part if part.isprintable() else repr(part)
            text += f".{name}" if text else name
    return text


def shown(value: Any) -> str:
    """Return a value for a message, in one line.

    It looks as in YAML, but a map and a list are only named ("a map"), and text is cut after 60
    characters.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else value[:_LONGEST] + "…")
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    return str(value) if isinstance(value, int | float) else f"a Python {type(value).__name__}"


@dataclass(frozen=True)
class Fault:
    """A fault: its path, its kind, and what a message about it needs.

    `names` are the names that would be valid. For the kind `units`, they are the names given.
    """

    path: Path
    kind: str
    says: str
    value: Any = None
    type: Type | None = None
    names: tuple[str, ...] = ()
    tag: str = ""

    @property
    def late(self) -> bool:
        """Whether a value is missing or breaks a rule, and its form is correct."""
        return self.kind in ("missing", "rule")

    @property
    def of_key(self) -> bool:
        """Whether the key is wrong, not the value."""
        return self.kind in ("unknown", "unit", "plugin")

    def __str__(self) -> str:
        at = dotted(self.path)
        if self.kind in ("rule", "refused", "plugin"):
            return self.says
        if self.kind in ("unknown", "unit"):
            return f"unknown key {at!r}"
        if self.kind == "missing":
            return f"{at} is missing"
        if self.kind == "units":
            return f"{at} has {' and '.join(self.names) or 'no unit'}; {self.says}"
        hidden = self.type is not None and "secret" in self.type.marks
        return f"{at} is {'not what it takes' if hidden else shown(self.value)}; {self.says}"

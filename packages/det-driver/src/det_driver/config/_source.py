"""The sources of a configuration: plain data as in JSON, and the place of each part for errors."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from det_core.config.faults import Path, dotted, shown
from det_core.errors import ConfigError

from ._yaml import DEEPEST, Mark, parse_yaml

Report = Callable[[Path, str], None]
_LONGEST = 16 << 20
"""The most bytes of a file."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class Source:
    """One file, one text or one mapping. `name` is None for a mapping."""

    name: str | None
    data: dict[str, Any]
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    overridden: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path, *, of_key: bool = False) -> str:
        """Return the prefix of an error about `path`.

        It is a place such as `const.yaml:7:15: `, the option that set the value, or empty.
        """
        for length in range(len(path), 0, -1):
            part = path[:length]
            if part in self.overridden:
                return f"{self.overridden[part]}: "
            of_key = of_key or length < len(path)
            mark = (self.keys if of_key else self.values).get(part) or self.values.get(part)
            if mark and self.name:
                return f"{self.name}:{mark[0]}:{mark[1]}: "
        return f"{self.name}: " if self.name else ""

    def order(self, path: Path) -> Mark:
        """Return the sort key of errors: line and column of the nearest part that has them."""
        marks = (
            self.keys.get(path[:n]) or self.values.get(path[:n]) for n in range(len(path), 0, -1)
        )
        return next(filter(None, marks), (0, 0))

    def holds(self, path: Path) -> bool:
        """Return whether something under `path` was written here."""
        return path in self.keys or path in self.values or path in self.overridden

    def moved(self, old: Path, new: Path) -> None:
        """Record that the value written at `old` is now at `new`."""
        places: tuple[dict[Path, Any], ...] = (self.keys, self.values, self.overridden)
        for marks in places:
            for path in [p for p in marks if p[: len(old)] == old]:
                marks.setdefault((*new, *path[len(old) :]), marks[path])


def from_mapping(mapping: Any, name: str | None = None) -> tuple[Source, list[str]]:
    """Return a mapping as a source, and its problems. Raises ConfigError if it is no mapping."""
    problems: list[str] = []
    data = plain(mapping, lambda path, text: problems.append(f"{name}: {text}" if name else text))
    if not isinstance(data, dict):
        raise ConfigError(*(problems or [_not_a_map(name, data)]))
    return Source(name, data), problems


def from_text(text: str, name: str) -> tuple[Source, list[str]]:
    """Return a YAML text as a source, and its problems. Raises ConfigError if it is not YAML."""
    document = parse_yaml(text, name)
    problems = [f"{name}:{line}:{column}: {text}" for (line, column), text in document.problems]
    source = Source(name, {}, document.keys, document.values)
    data = plain(document.data, lambda path, text: problems.append(source.place(path) + text))
    if data is not None and not isinstance(data, dict):
        raise ConfigError(*(problems or [_not_a_map(name, data)]))
    source.data = data or {}
    return source, problems


def from_file(path: FilePath) -> tuple[Source, list[str]]:
    """Return a file as a source, and its problems. Raises ConfigError if it cannot be read."""
    if path.suffix == ".py" and path.is_file():
        raise ConfigError(f"{path} is Python code; name a YAML file, which names the code")
    try:
        with path.open("rb") as file:
            # A device such as /dev/zero has no end.
            data = file.read(_LONGEST + 1)
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot read the configuration {str(path)!r}: {reason}; name a YAML file"
        ) from None
    if len(data) > _LONGEST:
        raise ConfigError(f"{path} has more than {_LONGEST >> 20} MiB; name a YAML file")
    return from_text(text, str(path))


def _not_a_map(name: str | None, data: Any) -> str:
    prefix = f"{name}: " if name else ""
    return (
        f"{prefix}the configuration is {shown(data)}; give a map such as searcher: {{name:"
        " single, …}"
    )


def plain(value: Any, report: Report, path: Path = ()) -> Any:
    """Return a copy of dicts with text keys, lists, text, finite numbers, booleans and None.

    Other values are reported.
    """
    if len(path) > DEEPEST:
        report(path[:3], f"{dotted(path[:3])} is nested more than {DEEPEST} deep; flatten it")
        return None
    if isinstance(value, Mapping):
        return {
            key: plain(item, report, (*path, key))
            for key, item in value.items()
            if _is_text(key, report, path)
        }
    if isinstance(value, list | tuple):
        return [plain(item, report, (*path, index)) for index, item in enumerate(value)]
    return _leaf(value, report, path)


def _is_text(key: Any, report: Report, path: Path) -> bool:
    problem = "" if isinstance(key, str) else "is not text; put it in quotes"
    if not problem and _SURROGATE.search(key):
        problem = "holds half a character (a surrogate); write it in full"
    if problem:
        report(path, f"the key {shown(key)}{f' of {dotted(path)}' if path else ''} {problem}")
    return not problem


def _leaf(value: Any, report: Report, path: Path) -> Any:
    if problem := _problem(value):
        report(path, f"{dotted(path) or 'the configuration'} is {problem}")
        return None
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    return value if kind is None or type(value) is kind else kind(value)


def _problem(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value}; give a finite number"
    if isinstance(value, int):
        return (
            None
            if -(2**63) <= value < 2**64
            else f"{shown(value)}; give a number that fits in 64 bits"
        )
    if isinstance(value, str):
        if "\0" in value:
            return f"{shown(value)}, with the character 0, which no path or variable may have"
        half = _SURROGATE.search(value)
        return (
            f"{shown(value)}, with half a character (a surrogate); write it in full"
            if half
            else None
        )
    return f"{shown(value)}; give text, a number, true, false, null, a list or a map"

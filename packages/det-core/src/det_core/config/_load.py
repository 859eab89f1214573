"""Reading a configuration: from a file, a text or a mapping to an `ExperimentConfig`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from ..errors import ConfigError
from ._experiment import ExperimentConfig
from ._extensions import Extensions
from ._kinds import KINDS
from ._legacy import modernise
from ._merge import merge_data
from ._notices import Notice, old_spellings, without_effect
from ._overrides import override
from ._reader import Problem, Reader
from ._rules import RULES
from ._source import Source, from_file, from_mapping, from_text


@dataclass(frozen=True)
class Loaded:
    """A configuration that was read, what its reader should know, and the merged data that it was read from."""

    config: ExperimentConfig
    notices: tuple[Notice, ...]
    raw: dict[str, Any]
    _sources: tuple[Source, ...] = field(default=(), repr=False, compare=False)

    def where(self, key: str) -> str:
        """Return the place of a dotted key, such as `const.yaml:7:15`; empty where it has none."""
        return _place(self._sources, tuple(key.split("."))).removesuffix(": ")


def load(
    path_or_text: str | FilePath,
    *,
    template: str | FilePath | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    extensions: Extensions | None = None,
    name: str | None = None,
    complete: bool = True,
) -> Loaded:
    """Read a YAML file, or a YAML text (a string that holds a line break or a colon and a space).

    `template` lies under it, `overrides` (`a.b=1`) over it. `name` stands for the file in errors. With `complete`
    false, what only an experiment that is run must have may be missing. Raises ConfigError with every problem found.
    """
    return _finish(_open(path_or_text, name), template, overrides, extensions or Extensions(), complete)


def parse(
    mapping: Mapping[str, Any],
    *,
    template: str | FilePath | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    extensions: Extensions | None = None,
    name: str | None = None,
    complete: bool = True,
) -> Loaded:
    """Read a mapping; the rest as in `load`."""
    return _finish(from_mapping(mapping, name), template, overrides, extensions or Extensions(), complete)


def from_json(text: str | bytes, *, extensions: Extensions | None = None) -> ExperimentConfig:
    """Read back what `to_json` wrote; without `extensions`, settings that only plugins know are not checked."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the stored configuration is not JSON: {error}; submit the experiment again") from None
    return parse(data, extensions=extensions or Extensions(open=True), complete=False).config


def _open(path_or_text: str | FilePath | Mapping[str, Any], name: str | None = None) -> tuple[Source, list[str]]:
    if isinstance(path_or_text, Mapping):
        return from_mapping(path_or_text, name)
    if isinstance(path_or_text, str) and ("\n" in path_or_text or ": " in path_or_text):
        return from_text(path_or_text, name or "<config>")
    return from_file(FilePath(path_or_text))


def _finish(
    opened: tuple[Source, list[str]],
    template: str | FilePath | Mapping[str, Any] | None,
    overrides: Iterable[str],
    extensions: Extensions,
    complete: bool,
) -> Loaded:
    user, problems = opened
    problems += override(user, overrides, extensions)
    sources = [user]
    if template is not None:
        lower, more = _open(template, "template")
        sources.append(lower)
        problems = more + problems
    renamed = [pair for source in sources for pair in modernise(source, problems)]
    for source in reversed(sources) if len(sources) > 1 else ():
        problems += _lines([p for p in _read(source.data, extensions)[0].problems if not p.late], (source,))
    raw = merge_data(sources[-1].data, user.data, extensions) if template is not None else user.data
    reader, config = _read(raw, extensions)
    wanted = [p for p in reader.problems if (len(sources) == 1 and not p.late) or (p.late and (complete or p.path[1:]))]
    problems += _lines(wanted, tuple(sources))
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    notices = (*old_spellings(renamed), *without_effect(reader.unhonoured))
    return Loaded(config, notices, raw, tuple(sources))


def _read(data: dict[str, Any], extensions: Extensions) -> tuple[Reader, ExperimentConfig]:
    reader = Reader(extensions, KINDS, RULES)
    config: ExperimentConfig = reader.struct(data, ExperimentConfig, ())
    return reader, config


def _lines(problems: list[Problem], sources: tuple[Source, ...]) -> list[str]:
    ordered = sorted(problems, key=lambda p: sources[0].order(p.path))
    return [_place(sources, p.path, of_key=p.of_key) + p.text for p in ordered]


def _place(sources: tuple[Source, ...], path: tuple[str | int, ...], *, of_key: bool = False) -> str:
    """Return the place in the first source that holds the longest part of the path."""
    for length in range(len(path), 0, -1):
        for source in sources:
            if source.holds(path[:length]):
                return source.place(path, of_key=of_key)
    return sources[0].place(path, of_key=of_key) if sources else ""

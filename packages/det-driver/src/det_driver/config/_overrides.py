"""`--config key.path=value`: changes to a configuration from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from det_core.config import SECTIONS, ExperimentConfig, Extensions
from det_core.config.faults import Path, dotted, shown
from det_core.config.fields import Type, base_of, fields_of, is_struct, item_of, type_of
from det_core.errors import ConfigError

from ._source import Source, plain
from ._yaml import parse_yaml, scalar


def override(source: Source, overrides: Iterable[str], extensions: Extensions) -> list[str]:
    """Put each `key.path=value` into `source.data`, and note where it comes from; the maps on the way are made.

    A value is a YAML scalar, a list of such with commas between, or JSON; where text is wanted, it is taken as it is,
    and where a list is wanted, one value is a list of one. A part of the path that is a number points into a list.
    Returns the problems.
    """
    problems: list[str] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            problems.append(f"--config {shown(text) if not equals else repr(key)}: give key.path=value")
            continue
        option = f"--config {key.strip()}"
        try:
            read = _read(value.strip(), path, _type_at(path, source.data, extensions), option)
            where = _put(source.data, path, read, option)
        except ConfigError as error:
            problems += error.problems
        else:
            source.overridden[where] = option
    return problems


def _read(text: str, path: Path, type_: Type | None, option: str) -> Any:
    problems: list[str] = []
    if text[:1] in ("{", "[", "'", '"'):
        document = parse_yaml(text, option)
        problems = [problem for _, problem in document.problems]
        value = document.data
    elif type_ and str in type_.arms:
        value = None if scalar(text) is None else text
    elif items := _items(type_):
        words = [part.strip() for part in text.split(",")]
        value = None if scalar(text) is None else [w if str in items.arms else scalar(w) for w in words]
    else:
        value = [scalar(part.strip()) for part in text.split(",")] if "," in text else scalar(text)
    value = plain(value, lambda _, problem: problems.append(problem), path)
    if problems:
        raise ConfigError(*(f"{option}: {problem}" for problem in problems))
    return value


def _items(type_: Type | None) -> Type | None:
    """Return the type of the items where a list is wanted."""
    if type_ and type_.marks.get("kind") == "environment_variables":
        return item_of(fields_of(type_.arm)["cpu"].type.arm)
    return item_of(type_.arm) if type_ and base_of(type_.arm) is list else None


def _put(data: dict[str, Any], path: Path, value: Any, option: str) -> Path:
    """Put `value` in its place; return the path of the outermost part that was not there before."""
    here: Any = data
    walked: Path = ()
    made: Path = ()
    for part in path[:-1]:
        step = _step(here, part, walked, option)
        walked = (*walked, step)
        if isinstance(here, dict) and here.get(step) is None:
            here[step] = {}
            made = made or walked
        here = here[step]
    last = _step(here, path[-1], walked, option)
    here[last] = value
    return made or (*walked, last)


def _step(here: Any, part: Any, walked: Path, option: str) -> Any:
    if isinstance(here, dict):
        return part
    if isinstance(here, list):
        if part.isdecimal() and int(part) < len(here):
            return int(part)
        raise ConfigError(
            f"{option}: {dotted(walked)} is a list of {len(here)}; give a number below that, not {part!r}"
        )
    raise ConfigError(
        f"{option}: {dotted(walked)} is {shown(here)}, which holds no {part!r}; set {dotted(walked)} itself"
    )


def _type_at(path: Path, data: dict[str, Any], extensions: Extensions) -> Type | None:
    """Return the type of what `path` names, None where nothing says."""
    type_ = type_of(ExperimentConfig)
    for depth, part in enumerate(path):
        arm = _arm(type_, path[:depth], data, extensions)
        if is_struct(arm):
            if part not in (fields := fields_of(arm)):
                return None
            type_ = fields[str(part)].type
        elif base_of(arm) in (dict, list):
            type_ = item_of(arm)
        else:
            return None
    return type_


def _arm(type_: Type, path: Path, data: dict[str, Any], extensions: Extensions) -> Any:
    kind = type_.marks.get("kind")
    if kind in SECTIONS:
        section = data.get(str(path[0]))
        name = section.get(SECTIONS[kind].tag) if isinstance(section, dict) else None
        return extensions.struct(kind, name) or type_.arm
    return None if kind in ("hyperparameters", "plugins") else type_.arm

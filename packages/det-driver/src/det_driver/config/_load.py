"""Load a configuration: from a file, a text or a mapping to an `ExperimentConfig`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from det_core.config import ExperimentConfig, Extensions, Notice, without_effect, without_secrets
from det_core.config.decoding import Decoding
from det_core.config.faults import Fault, Path, dotted
from det_core.errors import ConfigError

from ._conditions import space_faults
from ._layers import merge, override
from ._legacy import modernise, to_engine
from ._preferences import Preferences, preferable, without_keys
from ._rules import RULES
from ._sentences import put
from ._source import Source, from_file, from_mapping, from_text
from ._spaces import doubtful_direction, doubts, drawn_once


@dataclass(frozen=True)
class Loaded:
    """A configuration that was read and checked, and notices for the user.

    `written` are those dotted keys that the source or its template has, of the keys for which users
    may have defaults.
    """

    config: ExperimentConfig
    notices: tuple[Notice, ...]
    written: tuple[str, ...]


def load(
    source: str | FilePath | Mapping[str, Any],
    *,
    template: str | FilePath | Mapping[str, Any] | None = None,
    defaults: FilePath | Mapping[str, Any] | None = None,
    preferences: Preferences | None = None,
    engine: str | None = None,
    overrides: Iterable[str] = (),
    extensions: Extensions | None = None,
    name: str | None = None,
    complete: bool = True,
) -> Loaded:
    """Load a YAML file, a YAML text (it has a line break or a colon and a space) or a mapping.

    - `template` and below it the file `defaults` provide values that `source` does not have.
    - `preferences` of a user are below `template`, and above `defaults`.
    - `overrides` (`a.b=1`) replace its values.
    - `engine` selects an engine. Settings of other engines are left out.
    - `name` replaces the file's name in errors.
    - `complete` is false for a configuration that need not have what only a run needs.

    Raises ConfigError with all problems.
    """
    extensions = extensions or Extensions()
    user, problems = _open(source, name)
    problems += override(user, overrides, extensions)
    sources = [user]
    for under in (template, defaults):
        if under is not None:
            lower, more = _open(under, "template")
            sources.append(lower)
            problems = more + problems
    if engine is not None:
        _choose(engine, user.data, extensions)
    renamed = dict(pair for each in sources for pair in modernise(each, problems))
    lowest = len(sources) - (defaults is not None)
    engine = _engine_of(sources)
    written = _written(sources[:lowest], engine)
    if preferences is not None:
        layer, more = preferences.source(engine, extensions)
        # What is above may say the same in Determined's words, which are read below.
        layer.data = without_keys(layer.data, written)
        problems += more
        sources.insert(lowest, layer)
    alone = len(sources) == 1
    for each in reversed(sources) if not alone else ():
        decoding, _ = _decode(each.data, extensions)
        problems += _lines([(f, text) for f, text in put(decoding.faults) if not f.late], [each])
    data = user.data
    for lower in sources[1:]:
        data = merge(lower.data, data, extensions)
    renamed |= dict(to_engine(data))
    decoding, config = _decode(data, extensions)
    doubtful: list[Notice] = []
    wanted = [
        (fault, text)
        for fault, text in put(decoding.faults)
        if (complete or fault.path[1:] if fault.late else alone)
    ]
    sound = complete and not any(
        fault.path[:1] == ("hyperparameters",) for fault in decoding.faults
    )
    for path, text, sure in doubts(data.get("hyperparameters"), config) if sound else ():
        wanted += [(Fault(path, "rule", text), text)] if sure else []
        doubtful += (
            [] if sure else [Notice(_holder(sources, path).place(path) + text, (dotted(path),))]
        )
    if sound:
        wanted += [(Fault(path, "rule", text), text) for path, text in space_faults(config)]
    # Do not report a rejected value as missing, too.
    wanted = [
        (fault, text)
        for fault, text in wanted
        if not any(f" {dotted(fault.path)} is " in f" {p}" for p in problems)
    ]
    problems += _lines(wanted, sources)
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    if direction := doubtful_direction(data.get("searcher"), config):
        metric = ("searcher", "metric")
        place = _holder(sources, metric).place(metric)
        doubtful.append(Notice(place + direction, ("searcher.smaller_is_better",)))
    drawn, text = drawn_once(config)
    if complete and drawn:
        place = _holder(sources, drawn[0]).place(drawn[0])
        doubtful.append(Notice(place + text, tuple(map(dotted, drawn))))
    listed = ", ".join(f"{old} as {new}" for old, new in renamed.items())
    old = (Notice(f"old spellings, read as today's: {listed}", tuple(renamed)),) if renamed else ()
    return Loaded(
        config, (*old, *doubtful, *without_effect(decoding.without_effect(config))), written
    )


def mask_text(text: str) -> str:
    """Return the text of a configuration without its secrets.

    Any other text is returned unchanged.
    """
    try:
        config = load(f"{text}\n", extensions=Extensions(open=True), complete=False).config
    except ConfigError:
        return text
    return without_secrets(text, config, shortest=1)


def _open(
    source: str | FilePath | Mapping[str, Any], name: str | None = None
) -> tuple[Source, list[str]]:
    if isinstance(source, str) and ("\n" in source or ": " in source):
        return from_text(source, name or "<config>")
    return (
        from_file(FilePath(source))
        if isinstance(source, str | FilePath)
        else from_mapping(source, name)
    )


def _engine_of(sources: Iterable[Source]) -> str | None:
    """Return the name of the engine that the first of the sources chooses."""
    sections = (each.data.get("engine") for each in sources)
    names = (each.get("name") for each in sections if isinstance(each, dict))
    return next((str(each) for each in names if each is not None), None)


def _written(sources: Iterable[Source], engine: str | None) -> tuple[str, ...]:
    """Return the keys that the sources have, of those for which users may have defaults."""
    found: dict[str, None] = {}
    for each in sources:
        section = each.data.get("engine")
        named = {"name": engine, **(section if isinstance(section, dict) else {})}
        data = deepcopy({**each.data, "engine": named})
        # Determined's words for a setting of the engine are the setting.
        for _ in to_engine(data):
            pass
        found |= dict.fromkeys(preferable(data))
    return (*found,)


def _choose(engine: str, data: dict[str, Any], extensions: Extensions) -> None:
    """Set the engine, unless the configuration has it.

    An engine without settings needs no section.
    """
    section = data.get("engine")
    if not isinstance(section, dict) or section.get("name") != engine:
        data["engine"] = {"name": engine}
    if extensions.struct("engine", engine) is None:
        del data["engine"]


def _decode(data: dict[str, Any], extensions: Extensions) -> tuple[Decoding, ExperimentConfig]:
    decoding = Decoding(extensions, RULES)
    config: ExperimentConfig = decoding.struct(data, ExperimentConfig, ())
    return decoding, config


def _lines(problems: list[tuple[Fault, str]], sources: list[Source]) -> list[str]:
    ordered = sorted(problems, key=lambda problem: sources[0].order(problem[0].path))
    return [
        _holder(sources, fault.path).place(fault.path, of_key=fault.of_key) + text
        for fault, text in ordered
    ]


def _holder(sources: list[Source], path: Path) -> Source:
    """Return the first source that holds the longest part of the path."""
    lengths = range(len(path), 0, -1)
    return next(
        (source for n in lengths for source in sources if source.holds(path[:n])), sources[0]
    )

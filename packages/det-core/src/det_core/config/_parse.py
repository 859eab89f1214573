"""Reading a mapping that code hands over, or a stored configuration, where it is not an experiment's whole description."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ._experiment import ExperimentConfig
from ._extensions import Extensions
from .decoding import Decoding
from .faults import shown


@dataclass(frozen=True)
class Notice:
    """One sentence for a person, and the keys that it is about."""

    message: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Parsed:
    """A configuration that was read, and what its reader should know."""

    config: ExperimentConfig
    notices: tuple[Notice, ...]


def parse(mapping: Mapping[str, Any], *, extensions: Extensions | None = None, name: str | None = None) -> Parsed:
    """Read a mapping; what an experiment must have may be missing, and what needs a second key is not looked at.

    `name` stands for it in errors. Raises ConfigError with every problem found. The driver's `load` checks an experiment.
    """
    before = f"{name}: " if name else ""
    try:
        data = json.loads(json.dumps(mapping, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        text = f"{before}the configuration is not plain data: {error}; give text, numbers, lists and maps"
        raise ConfigError(text) from None
    return _decoded(data, extensions or Extensions(), before)


def from_json(text: str | bytes, *, extensions: Extensions | None = None) -> ExperimentConfig:
    """Read back what `to_json` wrote; without `extensions`, settings that only plugins know are not checked."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the stored configuration is not JSON: {error}; submit the experiment again") from None
    return _decoded(data, extensions or Extensions(open=True), "").config


def _decoded(data: Any, extensions: Extensions, before: str) -> Parsed:
    if not isinstance(data, dict):
        raise ConfigError(
            f"{before}the configuration is {shown(data)}; give a map such as searcher: {{name: single, …}}"
        )
    decoding = Decoding(extensions)
    config: ExperimentConfig = decoding.struct(data, ExperimentConfig, ())
    if wrong := [fault for fault in decoding.faults if not fault.late or fault.path[1:]]:
        raise ConfigError(*(f"{before}{fault}" for fault in wrong))
    return Parsed(config, without_effect(decoding.unhonoured))


def without_effect(keys: Iterable[str]) -> tuple[Notice, ...]:
    """Name the keys that were accepted and that nothing acts on."""
    named = tuple(dict.fromkeys(keys))
    return (Notice(f"accepted, but without effect in det: {', '.join(named)}", named),) if named else ()

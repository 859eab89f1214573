"""The defaults of a user, for `resources` and for the settings of each engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from det_core.config import ExperimentConfig, Extensions
from det_core.config.decoding import Decoding
from det_core.errors import ConfigError

from ._layers import override
from ._rules import RULES
from ._sentences import put
from ._source import Source

_RESOURCES = "resources"
_COMMON = (f"{_RESOURCES}.priority", f"{_RESOURCES}.weight", f"{_RESOURCES}.max_slots")


@dataclass(frozen=True)
class Preferences:
    """Default values for the configurations of one user. `of` is the name of the user.

    `values` maps keys to texts in the format of `det run --config`. The key `slurm.account` sets
    `engine.account` where the engine is `slurm`. `resources.priority` is set for every engine.
    """

    of: str
    values: Mapping[str, str]

    def check(self, extensions: Extensions) -> None:
        """Raise ConfigError for keys that do not exist, and for values that they cannot have."""
        problems: list[str] = []
        engines = [each for each in extensions.names("engine") if each != "in-process"]
        heads = dict.fromkeys(key.partition(".")[0] for key in self.values)
        for key in self.values:
            head, _, rest = key.partition(".")
            if head == _RESOURCES and key not in _COMMON:
                problems.append(f"{key}: users have defaults for {', '.join(_COMMON)} only")
            elif head != _RESOURCES and (head not in engines or not rest):
                known = ", ".join((_RESOURCES, *engines))
                problems.append(f"{key}: give {known}, and a setting, such as slurm.account")
        for engine in (each for each in heads if each in engines) if not problems else ():
            problems += self._problems(engine, extensions)
        if not problems and not heads.keys() & {*engines}:
            problems += self._problems(None, extensions)
        if problems:
            raise ConfigError(*dict.fromkeys(problems))

    def _problems(self, engine: str | None, extensions: Extensions) -> list[str]:
        source, problems = self.source(engine, extensions)
        decoding = Decoding(extensions, RULES)
        decoding.struct(source.data, ExperimentConfig, ())
        # A layer need not have what a whole configuration needs.
        found = [(fault, text) for fault, text in put(decoding.faults) if not fault.late]
        return problems + [source.place(fault.path) + text for fault, text in found]

    def source(self, engine: str | None, extensions: Extensions) -> tuple[Source, list[str]]:
        """Return the layer of an experiment with this engine, and its problems."""
        source, problems = Source(None, {}), list[str]()
        if any(key.partition(".")[0] == engine for key in self.values):
            source.data["engine"] = {"name": engine}
        for key, value in self.values.items():
            head, _, rest = key.partition(".")
            if head not in (engine, _RESOURCES):
                continue
            path = key if head == _RESOURCES else f"engine.{rest}"
            prefix = f"the default {key} of {self.of}: "
            for each in override(source, [f"{path}={value}"], extensions):
                problems.append(prefix + each.removeprefix(f"--config {path}: "))
            for where, option in source.overridden.items():
                if option == f"--config {path}":
                    source.overridden[where] = prefix.removesuffix(": ")
        return source, problems


def preferable(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of a configuration that have a value and may have a user's default.

    A key leads to a value that is no map, such as `engine.account`.
    """
    for key in _leaves(data):
        if key.startswith("engine.") or key in _COMMON:
            yield key


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        # The name of an engine is a choice, and no setting.
        elif value is not None and f"{prefix}{key}" != "engine.name":
            yield f"{prefix}{key}"


def without_keys(
    data: Mapping[str, Any], keys: Collection[str], prefix: str = ""
) -> dict[str, Any]:
    """Return a configuration without the values of dotted keys. Maps stay, if empty."""
    return {
        key: without_keys(value, keys, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in data.items()
        if f"{prefix}{key}" not in keys
    }

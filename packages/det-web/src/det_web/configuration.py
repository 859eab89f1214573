"""Converts configurations for the page, and finds the mistakes in them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from det_core.config import ExperimentConfig, Length, masked, to_builtins
from det_core.errors import ConfigError, DetError
from det_core.hooks import Plugins, extensions_of
from det_driver.config import (
    Loaded,
    Preferences,
    check_entrypoint,
    load,
    parse_yaml,
    preferable,
    to_yaml,
    without_keys,
)
from det_driver.driver import DriverSettings, check_startable

from .shapes import Mistake, Range

_PLACED = re.compile(r"<config>(?::(\d+):(\d+))?: (.*)", re.DOTALL)


@dataclass(frozen=True)
class Below:
    """What is below the configuration of a new experiment that is like another one.

    - `preferences`: the defaults of its user, if any.
    - `shared`: the file with the defaults of the home, where `source` leaves out what the other one
      has from it. Only keys for which users may have defaults are read, and of an engine only where
      it is the chosen one.
    """

    preferences: Preferences | None = None
    shared: Path | None = None

    def load(self, config: str | Mapping[str, Any], plugins: Plugins) -> Loaded:
        """Load a configuration (YAML or plain data) with these values below it."""
        extensions = extensions_of(plugins)
        given = f"{config}\n" if isinstance(config, str) else config
        shared: dict[str, Any] | None = None
        if self.shared is not None and self.shared.is_file():
            found = load(self.shared, extensions=extensions, complete=False).config
            shared = _preferable_part(to_builtins(found))
            data = parse_yaml(given, "<config>").data if isinstance(given, str) else given
            if _engine_named_in(shared) != _engine_named_in(data):
                del shared["engine"]
        return load(given, defaults=shared, preferences=self.preferences, extensions=extensions)


def _preferable_part(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine and those resources for which users may have defaults."""
    keys = {*preferable(data)}
    resources = {key: each for key, each in data["resources"].items() if f"resources.{key}" in keys}
    return {"engine": data["engine"], "resources": resources}


def _engine_named_in(data: object) -> object:
    section = data.get("engine") if isinstance(data, Mapping) else None
    return section.get("name") if isinstance(section, Mapping) else None


def source(config: ExperimentConfig, written: Collection[str] | None) -> tuple[str, list[str]]:
    """Return a configuration as short YAML, and the dotted keys that have their defaults.

    The YAML has no secrets and leaves out those keys. Of the keys for which users may have
    defaults, only those in `written` have no default, if they are known.
    """
    whole = masked(config)
    short, usual = _shorten(config, whole, written)
    inherited = () if written is None else {*preferable(whole)} - {*written}
    return to_yaml(short), sorted({*_same(whole, usual), *inherited})


def shortened(config: ExperimentConfig, written: Collection[str] | None) -> dict[str, Any]:
    """Return the plain data of `source`, with secrets."""
    return _shorten(config, to_builtins(config), written)[0]


def _shorten(
    config: ExperimentConfig, whole: Mapping[str, Any], written: Collection[str] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `whole` without what has its default, and the defaults."""
    usual = without_keys(_usual(config), written or ())
    own = whole if written is None else without_keys(whole, {*preferable(whole)} - {*written})
    short = {key: value for key, value in own.items() if key not in usual or usual[key] != value}
    kept = {key: _without(value, usual.get(key)) for key, value in short.items()}
    kept["hyperparameters"] = _plain(whole.get("hyperparameters", {}))
    return kept, usual


def space(hyperparameters: Mapping[str, Any], prefix: str = "") -> Iterator[Range]:
    """Yield the hyperparameters in plain data, by dotted name, with their ranges."""
    for name, value in hyperparameters.items():
        if not isinstance(value, Mapping):
            yield Range(prefix + name, "const", vals=[value])
        elif not isinstance(value.get("type"), str):
            yield from space(value, f"{prefix}{name}.")
        elif value["type"] == "const":
            yield Range(prefix + name, "const", vals=[value.get("val")])
        else:
            ends = {key: value.get(key) for key in ("minval", "maxval", "base", "vals")}
            # The page learns from the type alone whether an axis is logarithmic.
            yield Range(prefix + name, "log" if value.get("log") else value["type"], **ends)


def mistakes(
    text: str, below: Below, code: Path | None, home: Path, plugins: Plugins
) -> list[Mistake]:
    """Return the mistakes in a configuration (YAML) that `det check --config-only` finds."""
    try:
        loaded = below.load(text, plugins).config
        check_startable(loaded, DriverSettings.detect(os.environ, home=home))
        if code is not None:
            check_entrypoint(loaded.entrypoint, code)
    except DetError as error:
        lines = error.problems if isinstance(error, ConfigError) else (str(error),)
        found = [(_PLACED.fullmatch(line), line) for line in lines]
        return [
            Mistake(int(m[1] or 0), int(m[2] or 0), m[3]) if m else Mistake(0, 0, line)
            for m, line in found
        ]
    return []


def with_secrets(config: ExperimentConfig, like: ExperimentConfig) -> dict[str, Any]:
    """Return a configuration as plain data, with masked secrets filled in from `like`."""
    found: dict[str, Any] = _unmasked(to_builtins(config), masked(like), to_builtins(like))
    return found


def _unmasked(value: Any, blotted: Any, known: Any) -> Any:
    if isinstance(value, dict) and isinstance(known, dict) and isinstance(blotted, dict):
        return {
            key: _unmasked(each, blotted.get(key), known.get(key)) for key, each in value.items()
        }
    if isinstance(value, list) and isinstance(known, list) and len(value) == len(known):
        return [_unmasked(*each) for each in zip(value, blotted, known, strict=True)]
    return (
        known if isinstance(value, str) and isinstance(known, str) and value == blotted else value
    )


def _usual(config: msgspec.Struct) -> dict[str, Any]:
    """Return the defaults of a configuration as plain data. A section has those of its own kind."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(config):
        value, default = getattr(config, field.name), field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if isinstance(value, msgspec.Struct) and value != default and not isinstance(value, Length):
            found[field.encode_name] = _usual(value)
        elif default is not msgspec.NODEFAULT:
            found[field.encode_name] = to_builtins(default)
    return found


def _without(value: Any, usual: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(usual, dict):
        return value
    left = {
        key: _without(each, usual.get(key))
        for key, each in value.items()
        if key not in usual or usual[key] != each
    }
    return {key: value[key] for key in ("name", "type") if key in value} | left


def _same(value: Any, usual: Any, path: str = "") -> Iterator[str]:
    if not isinstance(value, dict) or not isinstance(usual, dict):
        if path and value == usual:
            yield path
        return
    for key, each in value.items():
        if key in usual:
            yield from (
                _same(each, usual[key], f"{path}.{key}" if path else key)
                if each
                else _equal(each, usual, key, path)
            )


def _equal(value: Any, usual: Mapping[str, Any], key: str, path: str) -> Iterator[str]:
    if value == usual[key]:
        yield f"{path}.{key}" if path else key


def _plain(value: Any) -> Any:
    constant = (
        isinstance(value, dict) and value.get("type") == "const" and value.get("when") is None
    )
    if constant and not isinstance(value.get("val"), dict | list):
        return value.get("val")
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return {key: each for key, each in value.items() if each is not None and each is not False}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value

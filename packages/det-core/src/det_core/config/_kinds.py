"""Reading what the types alone cannot say: lengths, hyperparameters, and sections whose shape depends on a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from ._experiment import DEFAULT_LOG_POLICIES, LogPolicy
from ._extensions import StructOf
from ._hyperparameters import RANGES, Const
from ._length import UNITS, Length
from ._reader import INVALID, KindReader, Reader
from ._searchers import REPLACED, SearcherConfig
from ._slots import SLOTS
from ._storage import StorageConfig
from ._types import Type, fields_of
from ._words import Path, dotted, nearest, shown

_DOCUMENTED = "a number of batches, {batches: n}, {records: n} or {epochs: n}"


def read_length(reader: Reader, value: Any, type_: Type, path: Path) -> Any:
    """Read an amount of training, 1 or more; `period` allows 0, which means never."""
    least = 0 if type_.marks["kind"] == "period" else 1
    unit, where = "batches", path
    if isinstance(value, dict):
        given = [key for key, item in value.items() if item is not None]
        if len(given) != 1 or given[0] not in UNITS:
            return _not_a_length(reader, value, given, path)
        unit = given[0]
        value, where = value[unit], (*path, unit)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        give = f"a number of {unit}" if where != path else _DOCUMENTED
        reader.report(where, f"{dotted(where)} is {shown(value)}; give {give}")
        return INVALID
    if value < least:
        give = f"a positive number of {unit}" + ("" if least else ", or 0 for never")
        reader.report(where, f"{dotted(where)} is {shown(value)}; give {give}")
        return INVALID
    return Length(unit, int(value))  # type: ignore[arg-type]


def _not_a_length(reader: Reader, value: dict[str, Any], given: list[str], path: Path) -> Any:
    for key in given:
        if key not in UNITS:
            near = nearest(key, UNITS)
            way_out = f"did you mean {near!r}?" if near else f"give {_DOCUMENTED}"
            reader.report((*path, key), f"unknown key {dotted((*path, key))!r}; {way_out}", of_key=True)
    if not given or all(key in UNITS for key in given):
        names = " and ".join(given) or "no unit"
        reader.report(path, f"{dotted(path)} has {names}; give exactly one of batches, records or epochs")
    return INVALID


def read_hyperparameters(reader: Reader, value: Any, type_: Type, path: Path) -> Any:
    """Read a map of hyperparameters, which may hold further maps."""
    if not isinstance(value, dict):
        reader.report(path, f"{dotted(path)} is {shown(value)}; give a map of names to values or ranges")
        return INVALID
    read = {key: _hyperparameter(reader, item, (*path, key)) for key, item in value.items()}
    return {key: item for key, item in read.items() if item is not INVALID}


def _hyperparameter(reader: Reader, value: Any, path: Path) -> Any:
    if not isinstance(value, dict):
        return Const(value)
    if "type" not in value:
        return {
            key: read
            for key, item in value.items()
            if (read := _hyperparameter(reader, item, (*path, key))) is not INVALID
        }
    chosen = value["type"]
    if isinstance(chosen, str) and chosen in RANGES:
        return reader.struct(value, RANGES[chosen], path, tag="type")
    where = (*path, "type")
    near = nearest(chosen, RANGES) if isinstance(chosen, str) else None
    names = ", ".join(sorted(RANGES))
    way_out = (
        f"did you mean {near!r}?" if near else f"give one of {names}, or wrap the map: {{type: const, val: {{…}}}}"
    )
    reader.report(where, f"{dotted(where)} is {shown(chosen)}; {way_out}")
    return INVALID


def read_searcher(reader: Reader, value: Any, type_: Type, path: Path) -> Any:
    """Read the section of a searcher by its `name`."""
    known, find = reader.extensions.searcher_names(), reader.extensions.searcher
    return _by_name(reader, value, path, "name", SearcherConfig, known, find, REPLACED)


def read_storage(reader: Reader, value: Any, type_: Type, path: Path) -> Any:
    """Read the section of a checkpoint storage by its `type`."""
    known, find = reader.extensions.storage_names(), reader.extensions.storage
    return _by_name(reader, value, path, "type", StorageConfig, known, find, {})


def _by_name(
    reader: Reader,
    value: Any,
    path: Path,
    tag: str,
    common: type[Struct],
    known: list[str],
    find: Callable[[str], type[Struct] | None],
    replaced: dict[str, str],
) -> Any:
    where = (*path, tag)
    if not isinstance(value, dict):
        reader.report(path, f"{dotted(path)} is {shown(value)}; give a map with a {tag}, one of {', '.join(known)}")
        return INVALID
    name = value.get(tag)
    if name is None:
        reader.missing(where, f"give one of {', '.join(known)}")
        shared = {key: item for key, item in value.items() if key in fields_of(common)}
        reader.struct(shared, common, path, tag=tag)
        return INVALID
    if isinstance(name, str) and (struct := find(name)):
        return reader.struct(value, struct, path, tag=tag)
    if isinstance(name, str) and name in replaced:
        reader.report(where, f"{dotted(where)} is {name!r}, which is gone; use {replaced[name]!r} in its place")
        return INVALID
    near = nearest(name, known) if isinstance(name, str) else None
    guess = f"did you mean {near!r}? known:" if near else "give one of"
    reader.report(where, f"{dotted(where)} is {shown(name)}; {guess} {', '.join(known)}")
    return INVALID


def read_plugins(reader: Reader, value: Any, type_: Type, path: Path) -> Any:
    """Read the settings of plugins, each by the plugin's own struct."""
    if not isinstance(value, dict):
        reader.report(path, f"{dotted(path)} is {shown(value)}; give a map of plugins' names to their settings")
        return INVALID
    read = {name: _plugin(reader, item, (*path, name)) for name, item in value.items()}
    return {name: item for name, item in read.items() if item is not INVALID}


def _plugin(reader: Reader, value: Any, path: Path) -> Any:
    plugins: dict[str, StructOf] = dict(reader.extensions.plugins)
    name = str(path[-1])
    if name not in plugins and reader.extensions.open:
        return value
    if name not in plugins:
        near = nearest(name, plugins)
        known = f"did you mean {near!r}?" if near else f"plugins with settings: {', '.join(sorted(plugins)) or 'none'}"
        reader.report(path, f"no installed plugin takes settings as {name!r}; {known}", of_key=True)
        return INVALID
    if value is not None and not isinstance(value, dict):
        reader.report(path, f"{dotted(path)} is {shown(value)}; give a map of settings")
        return INVALID
    return reader.struct(value or {}, plugins[name](), path)


def read_log_policies(reader: Reader, value: Any, type_: Type, path: Path) -> Any:
    """Read log policies; those that det has by itself come first, changed by what has their name."""
    if not isinstance(value, list):
        reader.report(path, f"{dotted(path)} is {shown(value)}; give a list of policies, each with name and pattern")
        return INVALID
    ours = {policy.name: policy for policy in DEFAULT_LOG_POLICIES}
    theirs: list[LogPolicy] = []
    for index, item in enumerate(value):
        policy = _log_policy(reader, item, ours, (*path, index))
        if policy is not INVALID and policy.name in ours:
            ours[policy.name] = policy
        elif policy is not INVALID:
            theirs.append(policy)
    return (*ours.values(), *theirs)


def _log_policy(reader: Reader, value: Any, ours: dict[str | None, LogPolicy], path: Path) -> Any:
    if not isinstance(value, dict):
        reader.report(path, f"{dotted(path)} is {shown(value)}; give a map with name, pattern and action")
        return INVALID
    default = ours.get(value["name"]) if isinstance(value.get("name"), str) else None
    full = msgspec.structs.asdict(default) | value if default else value
    policy = reader.struct(full, LogPolicy, path)
    if policy is not INVALID and policy.action == "exclude_node":
        reader.unhonoured.append(f"{dotted(path)}.action exclude_node")
    return policy


def read_per_slot(reader: Reader, value: Any, type_: Type, path: Path) -> Any:
    """Read a value for all kinds of slot, or a map with one for each."""
    cls = type_.arm
    if isinstance(value, dict):
        return reader.struct(value, cls, path)
    read = reader.read(value, fields_of(cls)["cpu"].type, path)
    return INVALID if read is INVALID else cls(**dict.fromkeys(SLOTS, read))


KINDS: dict[str, KindReader] = {
    "checkpoint_storage": read_storage,
    "environment_variables": read_per_slot,
    "hyperparameters": read_hyperparameters,
    "image": read_per_slot,
    "length": read_length,
    "log_policies": read_log_policies,
    "period": read_length,
    "plugins": read_plugins,
    "searcher": read_searcher,
}

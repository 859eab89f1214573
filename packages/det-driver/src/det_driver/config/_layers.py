"""The layers of a configuration: a template below the user's file, and options above it.

An option is `--config key.path=value`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from det_core.config import SECTIONS, ExperimentConfig, Extensions
from det_core.config.faults import Path, dotted, shown
from det_core.config.fields import Field, Type, base_of, fields_of, is_struct, item_of, type_of
from det_core.errors import ConfigError

from ._source import Source, plain
from ._yaml import parse_yaml, scalar


def merge(template: dict[str, Any], user: dict[str, Any], extensions: Extensions) -> dict[str, Any]:
    """Return `user` with `template` below it. Both are plain data in today's spelling.

    Values of the user win. Maps merge key by key, and lists are replaced. A null in `user` leaves
    the template's value. Exceptions:

    - Labels, environment variables, proxy ports, bind mounts and devices are joined. Those with the
      same container path are replaced.
    - Log policies merge by name.
    - A searcher or a storage merges only with one of the same kind. The keys that all kinds share
      always merge.
    - A hyperparameter is replaced as a whole, unless both are nested maps.
    """
    return _struct(template, user, fields_of(ExperimentConfig), extensions)


def _struct(
    low: dict[str, Any], high: dict[str, Any], fields: dict[str, Field], extensions: Extensions
) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        if key not in low or low[key] is None:
            merged[key] = value
        elif value is not None:
            merged[key] = (
                _value(low[key], value, fields[key].type, extensions) if key in fields else value
            )
    return merged


def _value(low: Any, high: Any, type_: Type, extensions: Extensions) -> Any:
    kind = type_.marks.get("kind")
    if kind in ("image", "environment_variables"):
        low, high = _spread(low, type_), _spread(high, type_)
    if isinstance(low, list) and isinstance(high, list):
        return _list(low, high, type_)
    if not (isinstance(low, dict) and isinstance(high, dict)) or kind in ("length", "period"):
        return high
    if kind == "hyperparameters":
        return _hyperparameters(low, high)
    if kind in SECTIONS:
        return _tagged(low, high, kind, extensions)
    if kind == "plugins":
        types = {
            name: type_of(find())
            for name, find in extensions.plugins.items()
            if name in low and name in high
        }
        return (
            low
            | high
            | {
                name: _value(low[name], high[name], type_, extensions)
                for name, type_ in types.items()
            }
        )
    return _map(low, high, type_, extensions)


def _spread(value: Any, type_: Type) -> Any:
    """Expand one image, or one list of variables, to a map by kind of slot.

    A map is returned unchanged.
    """
    return dict.fromkeys(fields_of(type_.arm), value) if isinstance(value, str | list) else value


def _map(
    low: dict[str, Any], high: dict[str, Any], type_: Type, extensions: Extensions
) -> dict[str, Any]:
    struct = next((arm for arm in type_.arms if is_struct(arm)), None)
    if struct:
        return _struct(low, high, fields_of(struct), extensions)
    item = item_of(type_.arm) if base_of(type_.arm) is dict else type_
    both = {key: _value(low[key], high[key], item, extensions) for key in low if key in high}
    return low | high | both


def _list(low: list[Any], high: list[Any], type_: Type) -> list[Any]:
    policies = type_.marks.get("kind") == "log_policies"
    if not policies and "joined" not in type_.marks:
        return high
    key = "name" if policies else type_.marks["joined"]
    if policies:
        below = {item["name"]: item for item in low if _has_name(item)}
        high = [below.get(item["name"], {}) | item if _has_name(item) else item for item in high]
    identities = [_identity(item, key) for item in high]
    return [item for item in low if _identity(item, key) not in identities] + high


def _identity(item: Any, key: str | None) -> Any:
    # A device may be written as host_path:container_path[:mode].
    if key == "container_path" and isinstance(item, str):
        return item.split(":")[1:2]
    return [item[key]] if key and isinstance(item, dict) and key in item else item


def _has_name(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("name"), str)


def _hyperparameters(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _hyperparameters(low[key], high[key])
        for key in low
        if _is_nested(low[key]) and _is_nested(high.get(key))
    }
    return low | high | both


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) and "type" not in value


def _tagged(
    low: dict[str, Any], high: dict[str, Any], kind: str, extensions: Extensions
) -> dict[str, Any]:
    tag, common = SECTIONS[kind].tag, SECTIONS[kind].common
    name = high.get(tag) if high.get(tag) is not None else low.get(tag)
    if low.get(tag) not in (None, name):
        low = {key: value for key, value in low.items() if key in fields_of(common)}
    # Reading the section reports an unknown name.
    struct = extensions.struct(kind, name)
    return _struct(low, high, fields_of(struct) if struct else {}, extensions)


def override(source: Source, overrides: Iterable[str], extensions: Extensions) -> list[str]:
    """Put each `key.path=value` into `source.data`, and record its option. Missing maps are made.

    A value is a YAML scalar, a list of scalars with commas between, or JSON. If text is needed, the
    value is taken literally. If a list is needed, one value is a list of one item. A number in the
    path is an index into a list. Returns the problems.
    """
    problems: list[str] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            problems.append(
                f"--config {shown(text) if not equals else repr(key)}: give key.path=value"
            )
            continue
        option = f"--config {key.strip()}"
        hyperparameters = source.data.get("hyperparameters")
        if (
            isinstance(hyperparameters, dict)
            and path[0] in hyperparameters
            and path[0] not in fields_of(ExperimentConfig)
        ):
            problems.append(f"{option}: unknown key; did you mean hyperparameters.{key.strip()}?")
            continue
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
        value = (
            None if scalar(text) is None else [w if str in items.arms else scalar(w) for w in words]
        )
    else:
        value = [scalar(part.strip()) for part in text.split(",")] if "," in text else scalar(text)
    value = plain(value, lambda _, problem: problems.append(problem), path)
    if problems:
        raise ConfigError(*(f"{option}: {problem}" for problem in problems))
    return value


def _items(type_: Type | None) -> Type | None:
    """Return the type of the items if a list is needed."""
    if type_ and type_.marks.get("kind") == "environment_variables":
        return item_of(fields_of(type_.arm)["cpu"].type.arm)
    return item_of(type_.arm) if type_ and base_of(type_.arm) is list else None


def _put(data: dict[str, Any], path: Path, value: Any, option: str) -> Path:
    """Set `value` at its path, and return the path of the outermost part that is new."""
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
            f"{option}: {dotted(walked)} is a list of {len(here)}; give a number below that, not"
            f" {part!r}"
        )
    raise ConfigError(
        f"{option}: {dotted(walked)} is {shown(here)}, which holds no {part!r}; set"
        f" {dotted(walked)} itself"
    )


def _type_at(path: Path, data: dict[str, Any], extensions: Extensions) -> Type | None:
    """Return the type of the value at `path`, or None if it is unknown."""
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

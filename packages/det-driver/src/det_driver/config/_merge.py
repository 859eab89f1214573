"""Laying a template under a person's file."""

from __future__ import annotations

from typing import Any

from det_core.config import SECTIONS, ExperimentConfig, Extensions
from det_core.config.fields import Field, Type, base_of, fields_of, is_struct, item_of


def merge(template: dict[str, Any], user: dict[str, Any], extensions: Extensions) -> dict[str, Any]:
    """Return `user` with `template` under it; both are plain data in today's spelling.

    The user wins; maps merge key by key, lists are replaced. Exceptions: labels, environment variables, proxy ports,
    bind mounts and devices are joined (those of the same container path replaced), log policies merge by name,
    a searcher or storage merges with one of its own kind only (what all kinds share always does), and a
    hyperparameter is replaced whole unless both are nested maps. A null in `user` leaves the template's value.
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
            merged[key] = _value(low[key], value, fields[key].type, extensions) if key in fields else value
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
        return {name: _plugin(low, high, name, extensions) for name in {**low, **high}}
    return _map(low, high, type_, extensions)


def _spread(value: Any, type_: Type) -> Any:
    """Return the map of kinds of slot that one image, or one list of variables, stands for; a map stays what it is."""
    return dict.fromkeys(fields_of(type_.arm), value) if isinstance(value, str | list) else value


def _map(low: dict[str, Any], high: dict[str, Any], type_: Type, extensions: Extensions) -> dict[str, Any]:
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
    taken = [_identity(item, key) for item in high]
    return [item for item in low if _identity(item, key) not in taken] + high


def _identity(item: Any, key: str | None) -> Any:
    return item[key] if key and isinstance(item, dict) and key in item else item


def _has_name(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("name"), str)


def _hyperparameters(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _hyperparameters(low[key], high[key]) for key in low if _is_nested(low[key]) and _is_nested(high.get(key))
    }
    return low | high | both


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) and "type" not in value


def _tagged(low: dict[str, Any], high: dict[str, Any], kind: str, extensions: Extensions) -> dict[str, Any]:
    tag, common = SECTIONS[kind].tag, SECTIONS[kind].common
    name = high.get(tag) if high.get(tag) is not None else low.get(tag)
    if low.get(tag) not in (None, name):
        low = {key: value for key, value in low.items() if key in fields_of(common)}
    struct = extensions.struct(kind, name)  # what is unknown is reported when the section is read
    return _struct(low, high, fields_of(struct) if struct else {}, extensions)


def _plugin(low: dict[str, Any], high: dict[str, Any], name: str, extensions: Extensions) -> Any:
    if name not in low or name not in high:
        return high.get(name, low.get(name))
    if not (isinstance(low[name], dict) and isinstance(high[name], dict)) or name not in extensions.plugins:
        return high[name]
    return _struct(low[name], high[name], fields_of(extensions.plugins[name]()), extensions)

"""Decodes plain data to structs, and collects all faults.

msgspec decodes each value, and this module walks the sections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_origin

import msgspec
from msgspec import Struct

from ..errors import nearest
from ._experiment import DEFAULT_LOG_POLICIES, ExperimentConfig, LogPolicy
from ._extensions import SECTIONS, Extensions
from ._searchers import RANGES, UNITS, Const, Length
from .faults import Fault, Path, dotted
from .fields import CONTAINED, Field, Type, base_of, fields_of, is_struct, item_of

_CONTAINED: str = (CONTAINED.extra or {})["honoured"]
Rule = Callable[[Any, str], "list[tuple[Path, str]]"]
INVALID: Any = type("Invalid", (), {"__repr__": lambda _: "INVALID", "__bool__": lambda _: False})()
"""Replaces a value that could not be decoded. It is never part of a configuration."""


class Decoding:
    """One reading of one configuration.

    `rules` check a struct after it is decoded. Each gets the struct and its dotted path, and
    returns problems, each with a path from the struct. A value that cannot be decoded keeps its
    default, so that the rest can be checked.
    """

    _looks = threading.Lock()
    """Shared by all threads, as two that convert to a new type at once crash the process.

    See tests/repo/test_architecture.py.
    """

    def __init__(
        self, extensions: Extensions, rules: Mapping[type[Struct], Rule] | None = None
    ) -> None:
        self.faults: list[Fault] = []
        self.unhonoured: list[str] = []
        self._contained: list[str] = []
        self._extensions = extensions
        self._rules = rules or {}
        self._kinds: dict[str, Callable[[Any, Type, Path], Any]] = {
            "checkpoint_storage": self._section,
            "engine": self._section,
            "device": self._device,
            "environment_variables": self._per_slot,
            "hyperparameters": self._hyperparameters,
            "image": self._per_slot,
            "length": self._length,
            "log_policies": self._log_policies,
            "period": self._length,
            "plugins": self._plugins,
            "searcher": self._section,
        }

    def without_effect(self, config: ExperimentConfig) -> list[str]:
        """Return the keys that have no effect in `config`."""
        return [*self.unhonoured, *([] if config.environment.container else self._contained)]

    def _fault(self, path: Path, kind: str, says: str, **facts: Any) -> Any:
        self.faults.append(Fault(path, kind, says, **facts))
        return INVALID

    def struct(self, value: dict[str, Any], cls: type[Struct], path: Path, *, tag: str = "") -> Any:
        """Decode a map as the struct `cls`. Returns INVALID, with the faults noted, if it is wrong.

        `tag` is the key that chose the struct.
        """
        fields = fields_of(cls)
        rest = next((f for f in fields.values() if "rest" in f.type.marks), None)
        known = {key: f for key, f in fields.items() if f is not rest}
        strangers = {key: item for key, item in value.items() if key not in known and key != tag}
        found: dict[str, Any] = {rest.name: strangers} if rest else {}
        for key in strangers if not rest else ():
            self._fault((*path, key), "unknown", "unknown key", names=tuple(known), tag=tag)
        for field in known.values():
            if (decoded := self._field(value, field, path)) is not INVALID:
                found[field.name] = decoded
        return self._build(cls, found, path)

    def _field(self, value: dict[str, Any], field: Field, path: Path) -> Any:
        given = value.get(field.key)
        where = (*path, field.key)
        asked_for = field.required or "needed" in field.type.marks
        null_is_a_value = field.type.optional and (field.required or not asked_for)
        if field.key not in value or (given is None and not null_is_a_value):
            return (
                self._fault(where, "missing", "missing", type=field.type) if asked_for else INVALID
            )
        decoded = self._value(given, field.type, where)
        idle = {"no": self.unhonoured, _CONTAINED: self._contained}.get(
            field.type.marks.get("honoured", "")
        )
        if idle is not None and decoded is not INVALID and decoded != field.default:
            idle.append(dotted(where))
        return decoded

    def _build(self, cls: type[Struct], found: dict[str, Any], path: Path) -> Any:
        if any(f.required and f.name not in found for f in fields_of(cls).values()):
            return INVALID
        try:
            built = cls(**found)
        # The `__post_init__` of a plugin's struct refuses it.
        except (TypeError, ValueError) as error:
            return self._fault(path, "refused", f"{dotted(path)}: {error}")
        troubled = [fault.path for fault in self.faults]
        for relative, text in self._rules[cls](built, dotted(path)) if cls in self._rules else ():
            where = (*path, *relative)
            if not any(other[: len(where)] == where for other in troubled):
                self._fault(where, "rule", text)
        return built

    def _value(self, value: Any, type_: Type, path: Path) -> Any:
        if value is None and type_.optional:
            return None
        if "kind" in type_.marks:
            return self._kinds[type_.marks["kind"]](value, type_, path)
        for arm in type_.arms:
            if is_struct(arm) and isinstance(value, dict):
                return self.struct(value, arm, path)
            if (
                base_of(arm) is list
                and isinstance(value, list)
                and len(value) >= type_.bounds.get("min_length", 0)
            ):
                items = (
                    self._value(item, item_of(arm), (*path, index))
                    for index, item in enumerate(value)
                )
                kept = [item for item in items if item is not INVALID]
                return kept if (get_origin(arm) or arm) is list else tuple(kept)
            if base_of(arm) is dict and isinstance(value, dict):
                item = item_of(arm)
                return _valid(
                    {key: self._value(inner, item, (*path, key)) for key, inner in value.items()}
                )
        try:
            with self._looks:
                return msgspec.convert(value, type_.hint)
        except msgspec.ValidationError as error:
            return self._fault(path, "value", str(error), value=value, type=type_)

    def _map(self, value: Any, type_: Type | None, path: Path, what: str) -> bool:
        """Return whether a value is a map. If not, note a fault that says `what` to give."""
        if not isinstance(value, dict):
            self._fault(path, "shape", f"give {what}", value=value, type=type_)
        return isinstance(value, dict)

    def _length(self, value: Any, type_: Type, path: Path) -> Any:
        """Decode a length of training, 1 or more. A `period` may be 0, which means never."""
        least = 0 if type_.marks["kind"] == "period" else 1
        unit, where = "batches", path
        if isinstance(value, dict):
            given = tuple(key for key, item in value.items() if item is not None)
            strangers = [key for key in given if key not in UNITS]
            for key in strangers:
                self._fault((*path, key), "unit", "unknown key", names=UNITS)
            if strangers:
                return INVALID
            if len(given) != 1:
                return self._fault(
                    path, "units", "give exactly one of batches, records or epochs", names=given
                )
            unit = given[0]
            value, where = value[unit], (*path, unit)
        whole = (
            isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        )
        if whole and value >= 2**63:
            # YAML reads 9e99 as a number with a fraction, which may be as large.
            says = "give a number that fits in 64 bits"
            return self._fault(where, "shape", says, value=value, type=type_)
        if whole and value >= least:
            return Length(unit, int(value))  # type: ignore[arg-type]
        kind, names = "few" if whole else "length", (unit,) if where != path else ()
        says = f"give a number of {unit}, {least} or more"
        return self._fault(where, kind, says, value=value, type=type_, names=names, tag=unit)

    def _hyperparameters(self, value: Any, type_: Type | None, path: Path) -> Any:
        if not self._map(value, type_, path, "a map of names to values or ranges"):
            return INVALID
        return _valid(
            {key: self._hyperparameter(item, (*path, key)) for key, item in value.items()}
        )

    def _hyperparameter(self, value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            return Const(value)
        if "type" not in value:
            return self._hyperparameters(value, None, path)
        return self._named(value, _range, path, "type", tuple(sorted(RANGES)))

    def _named(
        self,
        value: dict[str, Any],
        find: Callable[[Any], type[Struct] | None],
        path: Path,
        tag: str,
        known: tuple[str, ...],
    ) -> Any:
        """Decode a map as the struct that it names, which `find` returns."""
        if struct := find(value[tag]):
            return self.struct(value, struct, path, tag=tag)
        near = nearest(value[tag], known) if isinstance(value[tag], str) else None
        if near and (likely := find(near)):
            # Find the mistakes of the other keys, too. A name that was meant to be another one may
            # need other keys.
            before = len(self.faults)
            self.struct(value, likely, path, tag=tag)
            self.faults[before:] = [f for f in self.faults[before:] if f.kind != "missing"]
        says = f"no such {tag}; known: {', '.join(known)}"
        return self._fault((*path, tag), "name", says, value=value[tag], names=known)

    def _section(self, value: Any, type_: Type, path: Path) -> Any:
        """Decode a searcher, a storage or an engine. Its name determines its keys."""
        section = type_.marks["kind"]
        tag, common, ours, _, nameless, signs = SECTIONS[section]
        known = self._extensions.names(section)
        if not self._map(value, None, path, f"a map with a {tag}, one of {', '.join(known)}"):
            return INVALID
        if value.get(tag) is not None:
            find = partial(self._extensions.struct, section)
            return self._named(value, find, path, tag, known)
        if nameless and any(value.get(sign) is not None for sign in signs):
            return self.struct(value, nameless, path, tag=tag)
        given = value.keys() - fields_of(common).keys()
        likely = tuple(name for name, struct in ours.items() if given & fields_of(struct).keys())
        if nameless and not signs and not likely:
            return self.struct(value, nameless, path, tag=tag)
        self._fault((*path, tag), "missing", "missing", names=likely or known)
        self.struct(
            {key: item for key, item in value.items() if key in fields_of(common)},
            common,
            path,
            tag=tag,
        )
        return INVALID

    def _device(self, value: Any, type_: Type, path: Path) -> Any:
        """Decode a device: a map, or text in the form of container runtimes."""
        if isinstance(value, str) and len(parts := value.split(":")) in (2, 3):
            value = dict(zip(fields_of(type_.arm), parts, strict=False))
        if not isinstance(value, dict):
            return self._fault(path, "value", "give a device", value=value, type=type_)
        return self.struct(value, type_.arm, path)

    def _plugins(self, value: Any, type_: Type, path: Path) -> Any:
        if not self._map(value, None, path, "a map of plugins' names to their settings"):
            return INVALID
        return _valid(
            {name: self._plugin(item, name, (*path, name)) for name, item in value.items()}
        )

    def _plugin(self, value: Any, name: str, path: Path) -> Any:
        known = self._extensions.plugins
        if name not in known and self._extensions.open:
            return value
        if name not in known:
            says = f"no installed plugin takes settings as {name!r}"
            return self._fault(path, "plugin", says, names=tuple(sorted(known)))
        if value is not None and not self._map(value, None, path, "a map of settings"):
            return INVALID
        return self.struct(value or {}, known[name](), path)

    def _log_policies(self, value: Any, type_: Type, path: Path) -> Any:
        """Decode log policies. det's own come first, replaced by policies of the same name."""
        if not isinstance(value, list):
            return self._fault(
                path, "shape", "give a list of policies, each with name and pattern", value=value
            )
        ours = {policy.name: policy for policy in DEFAULT_LOG_POLICIES}
        theirs: list[LogPolicy] = []
        for index, item in enumerate(value):
            policy = self._log_policy(item, ours, (*path, index))
            if policy is not INVALID and policy.name in ours:
                ours[policy.name] = policy
            elif policy is not INVALID:
                theirs.append(policy)
        return (*ours.values(), *theirs)

    def _log_policy(self, value: Any, ours: dict[str | None, LogPolicy], path: Path) -> Any:
        if not self._map(value, None, path, "a map with name, pattern and action"):
            return INVALID
        default = ours.get(value["name"]) if isinstance(value.get("name"), str) else None
        policy = self.struct(
            msgspec.structs.asdict(default) | value if default else value, LogPolicy, path
        )
        if policy is not INVALID and policy.action == "exclude_node":
            self.unhonoured.append(f"{dotted(path)}.action exclude_node")
        return policy

    def _per_slot(self, value: Any, type_: Type, path: Path) -> Any:
        """Decode one value for all kinds of slot, or a map with one for each."""
        cls = type_.arm
        if isinstance(value, dict):
            return self.struct(value, cls, path)
        decoded = self._value(value, fields_of(cls)["cpu"].type, path)
        return INVALID if decoded is INVALID else cls(**dict.fromkeys(fields_of(cls), decoded))


def _range(name: Any) -> type[Struct] | None:
    return RANGES.get(name) if isinstance(name, str) else None


def _valid(decoded: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in decoded.items() if item is not INVALID}

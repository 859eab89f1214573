"""What plugins register, checked and looked up by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import pluggy

from .. import records
from ..errors import PluginError

KINDS: Mapping[str, type[Any]] = {
    "det_frameworks": records.Framework,
    "det_backends": records.BackendRecord,
    "det_searchers": records.SearcherRecord,
    "det_storages": records.StorageRecord,
    "det_launchers": records.LauncherRecord,
    "det_engines": records.EngineRecord,
    "det_commands": records.CommandRecord,
    "det_plugin_configs": records.PluginConfig,
}
"""The hooks that register, and what they yield."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)


class Lookup(dict[str, R]):
    """Records by name; a name that is missing is an error that says what is installed."""

    def __init__(self, what: str, records: Mapping[str, R]) -> None:
        super().__init__(records)
        self._what = what

    def __missing__(self, name: str) -> R:
        known = ", ".join(sorted(self)) or "none"
        hint = f". Try: pip install det-{name}" if self._what == "framework" else ""
        raise PluginError(f"no plugin registers the {self._what} {name!r}; installed: {known}{hint}")


def check_records(pm: pluggy.PluginManager, newcomer: str) -> None:
    """Refuse records of the wrong type and names that are taken, saying by whom."""
    for hook, kind in KINDS.items():
        caller: pluggy.HookCaller = getattr(pm.hook, hook)
        owners: dict[object, str] = {}
        for implementation in caller.get_hookimpls():
            owner = implementation.plugin_name
            for record in yielded(implementation, hook, kind):
                first = owners.get(_key(record))
                if first is not None:
                    raise PluginError(_conflict(first, owner, newcomer, f"{what(hook)} {record.name!r}"))
                owners[_key(record)] = owner


def yielded(implementation: pluggy.HookImpl, hook: str, kind: type[Any]) -> list[Any]:
    """Return the records of one plugin. Raises PluginError where they are something else."""
    owner, found = implementation.plugin_name, implementation.function()
    records = list(found) if isinstance(found, Iterable) else [found]
    for record in records:
        if not isinstance(record, kind):
            raise PluginError(f"plugin {owner!r} yields {record!r} from {hook}; yield det_core.{kind.__name__}")
    return records


def records_of(pm: pluggy.PluginManager, plugin: str, hook: str) -> list[Any]:
    """Return what one plugin yields from one hook."""
    caller: pluggy.HookCaller = getattr(pm.hook, hook)
    implementations = [each for each in caller.get_hookimpls() if each.plugin_name == plugin]
    return [record for each in implementations for record in yielded(each, hook, KINDS[hook])]


def imports_of(pm: pluggy.PluginManager, plugin: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what the records of a plugin are, in words, each with the call that imports what is behind it."""
    for hook in KINDS:
        for record in records_of(pm, plugin, hook):
            load = getattr(record, "load", None) or getattr(record, "config", None)
            if load is not None and (not isinstance(record, records.BackendRecord) or record.available()):
                yield f"{what(hook)} {record.name!r}", load


def what(hook: str) -> str:
    """Return what a hook registers, in words."""
    return hook.removeprefix("det_").removesuffix("s").replace("_", " ")


def _conflict(first: str, second: str, newcomer: str, what: str) -> str:
    if first == second:
        return f"plugin {first!r} registers the {what} twice; give each a name of its own"
    both = sorted((first, second)) if newcomer in (first, second) else [first, second]
    return f"plugins {both[0]!r} and {both[1]!r} both register the {what}; uninstall one of them"


def _key(record: Any) -> object:
    return (record.name, record.framework) if isinstance(record, records.BackendRecord) else record.name

"""Finding plugins, and refusing what does not fit: another core's plugins, unknown hooks, wrong records, taken names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

import pluggy

from .. import hookspecs
from ..backend import BackendRecord
from ..errors import PluginError, did_you_mean

ENTRY_POINT_GROUP = "det"
OURS = ("det-core", "det-driver")
"""The distributions whose records come first, so that a stranger's cannot take their names."""
_CORE = re.compile(r"det[-_.]core(?![\w.-])", re.IGNORECASE)
_PLAIN = re.compile(r"det-core\s*\(?(?P<bounds>(>=|<)\d+(\.\d+)*(\s*,\s*(>=|<)\d+(\.\d+)*)*)\)?")
KINDS: Mapping[str, type[Any]] = {
    name: get_args(get_type_hints(hook)["return"])[0]
    for name, hook in vars(hookspecs.Register).items()
    if name.startswith("det_")
}
"""The hooks that register, and what they yield."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry point and the distribution that brings it; `requires` are the requirements of that."""

    entry: EntryPoint
    distribution: str
    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """One plugin as `det plugins` lists it; `problem` says why it was skipped, or is empty."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class ObserverFailure:
    """What a plugin raised when it was told of something."""

    plugin: str
    hook: str
    message: str


def discover() -> Iterator[Found]:
    """Find the entry points of every installed distribution, in an order that does not depend on the file system."""
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=_order):
        brings: Any = entry.dist  # which no entry point of an installed distribution lacks
        yield Found(
            entry=entry, distribution=brings.name, version=brings.version, requires=tuple(brings.requires or ())
        )


def _order(entry: EntryPoint) -> tuple[bool, str, str]:
    return entry.dist is None or entry.dist.name not in OURS, entry.name, entry.value


def check_core(found: Found) -> None:
    """Raise PluginError where a distribution asks for another det-core than this, as pip may have left it.

    Plain bounds are compared here, since every command does it for every plugin. The rest of what a requirement may say is
    read by `packaging`, which det-driver has; a worker without it relies on what the driver found.
    """
    for text in found.requires:
        if not _CORE.match(text):
            continue
        installed = version("det-core")
        plain = _PLAIN.fullmatch(text)
        if plain:
            wanted = ",".join(sorted(plain["bounds"].replace(" ", "").split(",")))
            fits = all(_holds(installed, bound) for bound in wanted.split(","))
        elif find_spec("packaging") is None:
            continue
        else:
            wanted, fits = _read_requirement(found, text, installed)
        if not fits:
            raise PluginError(
                f"it requires det-core{wanted}, but det-core {installed} is installed; "
                f"try: pip install --upgrade det-core {found.distribution}"
            )


def _holds(installed: str, bound: str) -> bool:
    here, there = _numbers(installed), _numbers(bound.lstrip("<>="))
    return here >= there if bound.startswith(">=") else here < there


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _read_requirement(found: Found, text: str, installed: str) -> tuple[str, bool]:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        needed = Requirement(text)
    except InvalidRequirement as error:
        raise PluginError(f"{found.distribution} {found.version} has an unreadable requirement, {text!r}") from error
    applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
    return str(needed.specifier), not applies or needed.specifier.contains(installed, prereleases=True)


def check_implementations(pm: pluggy.PluginManager, plugin: object, name: str) -> None:
    """Refuse hooks that core does not have and arguments that a hook does not give, with those that there are."""
    known = [hook for hook in vars(pm.hook) if not hook.startswith("_")]
    for attribute in dir(plugin):
        options = pm.parse_hookimpl_opts(plugin, attribute)
        if options is None or options.get("optionalhook"):
            continue
        hook = options.get("specname") or attribute
        spec = getattr(getattr(pm.hook, hook, None), "spec", None)
        if spec is None:
            raise PluginError(unfit(name, f"it has no hook {hook}{did_you_mean(hook, known)}"))
        given = [*spec.argnames, *spec.kwargnames]
        for argument, parameter in inspect.signature(getattr(plugin, attribute)).parameters.items():
            if argument not in given and parameter.default is parameter.empty:
                listed = ", ".join(given) or "nothing"
                raise PluginError(unfit(name, f"{hook} does not give {argument!r}, but {listed}"))


def unfit(name: str, why: object) -> str:
    return f"plugin {name!r} does not fit this version of det-core: {why}"


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
            if load is not None and (not isinstance(record, BackendRecord) or record.available()):
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
    return (record.name, record.framework) if isinstance(record, BackendRecord) else record.name


class Lookup(dict[str, R]):
    """Records by name; a name that is missing is an error that says what is installed."""

    def __init__(self, what: str, records: Mapping[str, R]) -> None:
        super().__init__(records)
        self._what = what

    def __missing__(self, name: str) -> R:
        known = ", ".join(sorted(self)) or "none"
        hint = f". Try: pip install det-{name}" if self._what == "framework" else ""
        near = did_you_mean(name, self) or ";"
        raise PluginError(f"no plugin registers the {self._what} {name!r}{near} installed: {known}{hint}")

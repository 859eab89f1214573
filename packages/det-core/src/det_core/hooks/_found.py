"""Finds plugins, and refuses those that do not fit.

Those are plugins for another version of core, with unknown hooks, wrong records or names that are
taken.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

import pluggy

from ..errors import PluginError, did_you_mean, nearest
from ..ranks.backend import BackendRecord
from ..support.installation import CORE, DISTRIBUTIONS, how_to_install, own_version
from . import hookspecs
from .records import CommandRecord

ENTRY_POINT_GROUP = "det"
OURS = (CORE, "det-node", "det-driver")
"""The distributions whose records come first, so that other plugins cannot take their names."""
_OWN_HOOKS = "det_core._hooks"
_CORE = re.compile(r"det[-_.]training[-_.]core(?![\w.-])", re.IGNORECASE)
_PLAIN = re.compile(CORE + r"\s*\(?(?P<bounds>(>=|<)\d+(\.\d+)*(\s*,\s*(>=|<)\d+(\.\d+)*)*)\)?")
KINDS: Mapping[str, type[Any]] = {
    name: get_args(get_type_hints(hook)["return"])[0]
    for name, hook in vars(hookspecs.Register).items()
    if name.startswith("det_")
}
"""The hooks that register records, and the types that they yield."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry point, its distribution, and the requirements of that distribution."""

    entry: EntryPoint
    distribution: str
    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """One plugin as `det plugins` lists it.

    `problem` says why it was skipped, or is empty. `seconds` is how long its import took, which
    every command waits for.
    """

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    problem: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ObserverFailure:
    """An exception that an observer raised, or a call in which it hung."""

    plugin: str
    hook: str
    message: str


def discover() -> Iterator[Found]:
    """Find the entry points of every installed distribution, in an order that is always the same.

    det_core has only one: the metadata of a distribution that was renamed may be left. They are
    searched again if a directory of `sys.path` has changed, as it does with each installation.
    """
    yield from _discover(tuple((path, _last_change(path)) for path in sys.path))


@lru_cache(maxsize=1)
def _discover(paths: tuple[tuple[str, int], ...]) -> tuple[Found, ...]:
    return tuple(_search())


def _last_change(path: str) -> int:
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


def _search() -> Iterator[Found]:
    entries = sorted(entry_points(group=ENTRY_POINT_GROUP), key=_order)
    first = next((entry for entry in entries if entry.value == _OWN_HOOKS), None)
    for entry in (each for each in entries if each is first or each.value != _OWN_HOOKS):
        # Every entry point of an installed distribution has one.
        brings: Any = entry.dist
        yield Found(
            entry=entry,
            distribution=brings.name,
            version=brings.version,
            requires=tuple(brings.requires or ()),
        )


def _order(entry: EntryPoint) -> tuple[bool, str, str]:
    return entry.dist is None or entry.dist.name not in OURS, entry.name, entry.value


def check_core(found: Found) -> None:
    """Raise PluginError if a distribution requires another det-core. pip may leave such a pair.

    Simple bounds are compared here, as every command does it for every plugin. Other requirements
    are read with `packaging`, which det-driver installs. A worker without it relies on the driver's
    check.
    """
    for text in found.requires:
        if not _CORE.match(text):
            continue
        installed = own_version()
        plain = _PLAIN.fullmatch(text)
        if plain:
            wanted = ",".join(sorted(plain["bounds"].replace(" ", "").split(",")))
            broken = [bound for bound in wanted.split(",") if not _holds(installed, bound)]
        elif find_spec("packaging") is None:
            continue
        else:
            wanted, broken = _read_requirement(found, text, installed)
        if broken:
            # The message names the older one of the two to upgrade.
            is_old = all(bound.startswith("<") for bound in broken)
            old = found.distribution if is_old else CORE
            raise PluginError(
                f"it requires {CORE}{wanted}, but {CORE} {installed} is installed; "
                f"upgrade {old}: {how_to_install(old, upgrade=True)}"
            )


def _holds(installed: str, bound: str) -> bool:
    here, there = _numbers(installed), _numbers(bound.lstrip("<>="))
    return here >= there if bound.startswith(">=") else here < there


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _read_requirement(found: Found, text: str, installed: str) -> tuple[str, list[str]]:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        needed = Requirement(text)
    except InvalidRequirement as error:
        raise PluginError(
            f"{found.distribution} {found.version} has an unreadable requirement, {text!r}"
        ) from error
    applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
    bounds = needed.specifier if applies else ()
    return str(needed.specifier), [
        str(each) for each in bounds if not each.contains(installed, prereleases=True)
    ]


def check_implementations(pm: pluggy.PluginManager, plugin: object, name: str) -> None:
    """Raise PluginError for unknown hooks and for arguments that a hook does not give.

    The message names those that exist.
    """
    known = [hook for hook in vars(pm.hook) if not hook.startswith("_")]
    for attribute in dir(plugin):
        options = pm.parse_hookimpl_opts(plugin, attribute)
        if options is None or options.get("optionalhook"):
            continue
        hook = options.get("specname") or attribute
        function = getattr(plugin, attribute)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise PluginError(
                f"plugin {name!r} has an async {hook}, which nobody would await; write def, not"
                " async def"
            )
        spec = getattr(getattr(pm.hook, hook, None), "spec", None)
        if spec is None:
            if near := nearest(hook, known):
                raise PluginError(
                    f"plugin {name!r} implements {hook}, which is no hook; did you mean {near!r}?"
                )
            raise PluginError(unfit(name, f"it has no hook {hook}"))
        given = [*spec.argnames, *spec.kwargnames]
        for argument, parameter in inspect.signature(function).parameters.items():
            if argument not in given and parameter.default is parameter.empty:
                listed = ", ".join(given) or "nothing"
                raise PluginError(unfit(name, f"{hook} does not give {argument!r}, but {listed}"))


def unfit(name: str, why: object) -> str:
    return f"plugin {name!r} does not fit this version of det-core: {why}"


def check_records(
    pm: pluggy.PluginManager, newcomer: str, own_commands: Collection[str] = ()
) -> None:
    """Raise PluginError for records of the wrong type, and for names that another plugin has."""
    for hook, kind in KINDS.items():
        caller: pluggy.HookCaller = getattr(pm.hook, hook)
        owners: dict[object, str] = {}
        for implementation in caller.get_hookimpls():
            owner = implementation.plugin_name
            for record in yielded(implementation, hook, kind):
                if kind is CommandRecord and record.name in own_commands:
                    raise PluginError(
                        f"plugin {owner!r} registers the command {record.name!r}, which det has"
                        " itself; give it another name"
                    )
                first = owners.get(_key(record))
                if first is not None:
                    raise PluginError(
                        _conflict(first, owner, newcomer, f"{what(hook)} {record.name!r}")
                    )
                owners[_key(record)] = owner


@contextmanager
def blamed(plugin: str, where: str) -> Iterator[None]:
    """Raise PluginError for an exception of a plugin that would end this process, such as sys.exit.

    KeyboardInterrupt passes through.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(
            f"plugin {plugin!r} raised {described(error)} in {where}; mend it, or uninstall the"
            " package that brings it"
        ) from error


def described(error: BaseException) -> str:
    """Return an exception in one line. For sys.exit, show the call."""
    if isinstance(error, SystemExit):
        return f"SystemExit (sys.exit({error.code!r}))"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def guarded(plugin: str, record: Any) -> Any:
    """Return a record of a plugin whose callables cannot end this process."""

    def guard(call: Callable[..., Any], what: str) -> Callable[..., Any]:
        @wraps(call)
        def called(*arguments: Any, **named: Any) -> Any:
            with blamed(plugin, what):
                return call(*arguments, **named)

        return called

    calls = {
        name: guard(call, f"{name} of {record.name!r}")
        for name in ("load", "config", "make", "open", "available")
        if callable(call := getattr(record, name, None))
    }
    return replace(record, **calls)


def yielded(implementation: pluggy.HookImpl, hook: str, kind: type[Any]) -> list[Any]:
    """Return the records of one plugin. Raises PluginError if one has the wrong type."""
    owner = implementation.plugin_name
    with blamed(owner, hook):
        found = implementation.function()
        records = list(found) if isinstance(found, Iterable) else [found]
    for record in records:
        if not isinstance(record, kind):
            raise PluginError(
                f"plugin {owner!r} yields {record!r} from {hook}; yield det_core.{kind.__name__}"
            )
    return records


def records_of(pm: pluggy.PluginManager, plugin: str, hook: str) -> list[Any]:
    """Return the records that one plugin yields from one hook."""
    caller: pluggy.HookCaller = getattr(pm.hook, hook)
    implementations = [each for each in caller.get_hookimpls() if each.plugin_name == plugin]
    return [record for each in implementations for record in yielded(each, hook, KINDS[hook])]


def imports_of(pm: pluggy.PluginManager, plugin: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a description of each record of a plugin, with a call that imports its module."""
    for hook in KINDS:
        for record in records_of(pm, plugin, hook):
            load = getattr(record, "load", None) or getattr(record, "config", None)
            if load is not None and (not isinstance(record, BackendRecord) or record.available()):
                yield f"{what(hook)} {record.name!r}", load


def what(hook: str) -> str:
    """Return the name of what a hook registers, for messages."""
    return hook.removeprefix("det_").removesuffix("s").replace("_", " ")


def _conflict(first: str, second: str, newcomer: str, what: str) -> str:
    if first == second:
        return f"plugin {first!r} registers the {what} twice; give each a name of its own"
    both = sorted((first, second)) if newcomer in (first, second) else [first, second]
    return f"plugins {both[0]!r} and {both[1]!r} both register the {what}; uninstall one of them"


def _key(record: Any) -> object:
    return (record.name, record.framework) if isinstance(record, BackendRecord) else record.name


class Lookup(dict[str, R]):
    """Records by name. A missing name raises PluginError with the installed ones."""

    def __init__(self, what: str, records: Mapping[str, R]) -> None:
        super().__init__(records)
        self._what = what

    def __missing__(self, name: str) -> R:
        known = ", ".join(sorted(self)) or "none"
        ours = self._what == "framework" and f"det-{name}" in DISTRIBUTIONS
        hint = f". Try: {how_to_install(f'det-{name}')}" if ours else ""
        near = did_you_mean(name, self) or ";"
        raise PluginError(
            f"no plugin registers the {self._what} {name!r}{near} installed: {known}{hint}"
        )

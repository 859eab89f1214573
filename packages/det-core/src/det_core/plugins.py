"""The plugins of one process: found, checked, looked up by name, and called.

Make one `Plugins` and pass it on; there is none at module level.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

import pluggy

from . import hookspecs, records
from .adapter import Build
from .errors import PluginError

ENTRY_POINT_GROUP = "det"
BUILTIN = "det-core"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=_Named)


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """One plugin as `det plugins` lists it; `problem` says why it was skipped, or is empty."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry point and the distribution that brings it."""

    entry: EntryPoint
    distribution: str
    version: str


class Plugins:
    """A typed face on pluggy: one object per process, passed, never global.

    `strict` raises where a plugin is broken, which is otherwise skipped and named; `trace` prints every hook call;
    `warn` is told each sentence that a person should read.
    """

    def __init__(self, *, strict: bool = False, trace: bool = False, warn: Callable[[str], None] | None = None) -> None:
        self._strict = strict
        self._warn = warn or _to_stderr
        self._infos: dict[str, PluginInfo] = {}
        self._builds: dict[str, Build] = {}
        self._pm = pluggy.PluginManager(hookspecs.PROJECT)
        for group in hookspecs.GROUPS:
            self._pm.add_hookspecs(group)
        self._pm.register(_AsBuilt(), name="as built")
        if trace:
            self._pm.trace.root.setwriter(_write)
            self._pm.enable_tracing()

    @classmethod
    def installed(
        cls, *, strict: bool = False, trace: bool = False, warn: Callable[[str], None] | None = None
    ) -> Plugins:
        """Return the built-in plugins and those of every installed distribution."""
        plugins = cls(strict=strict, trace=trace, warn=warn)
        plugins.register_builtins()
        plugins.load(discover())
        return plugins

    def register_builtins(self) -> None:
        """Register core's own records, through the hooks that strangers use."""
        from . import __version__
        from .builtin import builtins

        for name, plugin in builtins():
            self.register(plugin, name, distribution=BUILTIN, version=__version__)

    def register(self, plugin: object, name: str, *, distribution: str = "", version: str = "") -> None:
        """Add a plugin: a module or an object with hook implementations.

        Raises PluginError when it implements a hook that core does not have, takes an argument that the hook does not
        give, yields what is not a record, or registers a name that is taken.
        """
        try:
            self._pm.register(plugin, name=name)
            self._pm.check_pending()
            self._check_records(name)
            self._check_observers(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            self._unregister(plugin)
            raise PluginError(f"plugin {name!r} does not fit this version of det-core: {error}") from error
        except BaseException:
            self._unregister(plugin)
            raise
        hooks = tuple(sorted(h.name for h in self._pm.get_hookcallers(plugin) or ()))
        self._infos[name] = PluginInfo(name=name, distribution=distribution, version=version, hooks=hooks)
        self._builds.clear()

    def load(self, found: Iterable[Found]) -> None:
        """Import and register plugins, each on its own; a broken one is skipped and named."""
        for plugin in found:
            name = plugin.entry.name
            try:
                self.register(plugin.entry.load(), name, distribution=plugin.distribution, version=plugin.version)
            except Exception as error:
                if self._strict:
                    raise
                told = f"{type(error).__name__}: {error}" if not isinstance(error, PluginError) else str(error)
                problem = " ".join(told.split())
                self._infos[name] = PluginInfo(
                    name=name, distribution=plugin.distribution, version=plugin.version, problem=problem
                )
                self._warn(
                    f"skipped plugin {name!r} of {plugin.distribution} {plugin.version}: {problem}; "
                    "set DET_STRICT_PLUGINS=1 to raise"
                )

    @property
    def infos(self) -> list[PluginInfo]:
        """Every plugin that was found, skipped ones included, by name."""
        return sorted(self._infos.values(), key=lambda info: info.name)

    # Register

    def frameworks(self) -> dict[str, records.Framework]:
        return self._records("framework", records.Framework, self._pm.hook.det_frameworks)

    def backends(self) -> list[records.BackendRecord]:
        """All backends; a name may serve several frameworks, once each."""
        return [r for rs in self._pm.hook.det_backends() for r in rs]

    def searchers(self) -> dict[str, records.SearcherRecord]:
        return self._records("searcher", records.SearcherRecord, self._pm.hook.det_searchers)

    def storages(self) -> dict[str, records.StorageRecord]:
        return self._records("storage", records.StorageRecord, self._pm.hook.det_storages)

    def launchers(self) -> dict[str, records.LauncherRecord]:
        return self._records("launcher", records.LauncherRecord, self._pm.hook.det_launchers)

    def engines(self) -> dict[str, records.EngineRecord]:
        return self._records("engine", records.EngineRecord, self._pm.hook.det_engines)

    def commands(self) -> dict[str, records.CommandRecord]:
        return self._records("command", records.CommandRecord, self._pm.hook.det_commands)

    def plugin_configs(self) -> dict[str, records.PluginConfig]:
        return self._records("plugin configuration", records.PluginConfig, self._pm.hook.det_plugin_configs)

    def framework_of(self, trial: type) -> records.Framework:
        """Return the framework whose trial class `trial` derives from; the nearest base decides."""
        frameworks = self.frameworks()
        for base in trial.__mro__:
            for framework in frameworks.values():
                package, _, name = framework.trial.partition(":")
                if base.__qualname__ == name and base.__module__.partition(".")[0] == package:
                    return framework
        known = ", ".join(f"{f.trial.replace(':', '.')}" for f in frameworks.values()) or "none"
        raise PluginError(
            f"{trial.__module__}.{trial.__qualname__} is not a trial of an installed framework; derive it from one of: "
            f"{known}, or install its plugin (pip install det-torch, det-keras, …)"
        )

    # Build

    def build(self, framework: str) -> Build:
        """Return the build hooks in which, of all frameworks' plugins, only that of `framework` takes part."""
        if framework not in self._builds:
            others = [p for p in self._pm.get_plugins() if self._is_other_framework(p, framework)]
            self._builds[framework] = _BuildHooks(self._pm, others)
        return self._builds[framework]

    # Observe

    def observe(self, hook: str, **arguments: Any) -> None:
        """Tell every observer; one that raises is named, and the others are told all the same."""
        caller: pluggy.HookCaller = getattr(self._pm.hook, hook)
        self._pm.trace.root.get("hook")(hook, arguments)
        for implementation in caller.get_hookimpls():
            wanted = {name: arguments[name] for name in implementation.argnames}
            try:
                implementation.function(**wanted)
            except Exception as error:
                if self._strict:
                    raise
                where = traceback.extract_tb(error.__traceback__)[-1]
                self._warn(
                    f"observer {implementation.plugin_name!r} failed in {hook}: {type(error).__name__}: {error} "
                    f"({where.filename}:{where.lineno}); the experiment goes on"
                )

    # Inside

    def _records(self, what: str, kind: type[R], hook: Callable[[], list[Iterable[R]]]) -> dict[str, R]:
        return _Lookup(what, {record.name: record for rs in hook() for record in rs})

    def _check_records(self, name: str) -> None:
        """Refuse records of the wrong type and names that are taken, saying by whom."""
        for hook, kind in _KINDS.items():
            caller: pluggy.HookCaller = getattr(self._pm.hook, hook)
            owners: dict[object, str] = {}
            for implementation in caller.get_hookimpls():
                owner = implementation.plugin_name
                for record in _yielded(implementation, hook, kind):
                    first = owners.get(_key(record))
                    if first is not None:
                        raise PluginError(_conflict(first, owner, name, f"{_what(hook)} {record.name!r}"))
                    owners[_key(record)] = owner

    def _check_observers(self, plugin: object, name: str) -> None:
        for caller in self._pm.get_hookcallers(plugin) or ():
            wraps = any(i.plugin is plugin and (i.wrapper or i.hookwrapper) for i in caller.get_hookimpls())
            if wraps and hasattr(hookspecs.Observe, caller.name):
                raise PluginError(
                    f"plugin {name!r} wraps {caller.name}, which is called after the fact; implement it without wrapper=True"
                )

    def _unregister(self, plugin: object) -> None:
        if self._pm.is_registered(plugin):
            self._pm.unregister(plugin)

    def _is_other_framework(self, plugin: object, framework: str) -> bool:
        register = getattr(plugin, "det_frameworks", None)
        if register is None:
            return False
        names = {record.name for record in register()}
        return bool(names) and framework not in names


class _Lookup(dict[str, R]):
    """Records by name; a name that is missing is an error that says what is installed."""

    def __init__(self, what: str, records: dict[str, R]) -> None:
        super().__init__(records)
        self._what = what

    def __missing__(self, name: str) -> R:
        known = ", ".join(sorted(self)) or "none"
        hint = f". Try: pip install det-{name}" if self._what == "framework" else ""
        raise PluginError(f"no plugin registers the {self._what} {name!r}; installed: {known}{hint}")


class _Build:
    """The function that builds the user's object; remembers what it gave, so that it is not built twice unasked."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self.called, self.value = False, None

    def __call__(self) -> Any:
        self.value = self._build()
        self.called = True
        return self.value


class _AsBuilt:
    """Answers the build hooks that a framework leaves alone: what the user built is used as it is."""

    @hookspecs.hookimpl(trylast=True)
    def det_build_model(self, build: _Build) -> Any:
        return build.value if build.called else build()

    det_build_optimizer = det_build_lr_scheduler = det_build_data_loader = det_build_model


class _BuildHooks:
    """The build hooks of one framework."""

    def __init__(self, pm: pluggy.PluginManager, without: list[object]) -> None:
        self._hooks = {
            name: pm.subset_hook_caller(f"det_build_{name}", without)
            for name in ("model", "optimizer", "lr_scheduler", "data_loader")
        }

    def model(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._hooks["model"](context=context, build=_Build(build))

    def optimizer(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._hooks["optimizer"](context=context, build=_Build(build))

    def lr_scheduler(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._hooks["lr_scheduler"](context=context, build=_Build(build))

    def data_loader(self, context: Any, build: Callable[[], Any], split: str) -> Any:
        return self._hooks["data_loader"](context=context, build=_Build(build), split=split)


_KINDS: Mapping[str, type[Any]] = {
    "det_frameworks": records.Framework,
    "det_backends": records.BackendRecord,
    "det_searchers": records.SearcherRecord,
    "det_storages": records.StorageRecord,
    "det_launchers": records.LauncherRecord,
    "det_engines": records.EngineRecord,
    "det_commands": records.CommandRecord,
    "det_plugin_configs": records.PluginConfig,
}


def discover() -> Iterator[Found]:
    """Find the entry points of every installed distribution."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        distribution = entry.dist
        name, version = (distribution.name, distribution.version) if distribution else ("unknown", "")
        yield Found(entry=entry, distribution=name, version=version)


def _yielded(implementation: pluggy.HookImpl, hook: str, kind: type[Any]) -> list[Any]:
    owner, yielded = implementation.plugin_name, implementation.function()
    records = list(yielded) if isinstance(yielded, Iterable) else [yielded]
    for record in records:
        if not isinstance(record, kind):
            raise PluginError(f"plugin {owner!r} yields {record!r} from {hook}; yield det_core.{kind.__name__}")
    return records


def _conflict(first: str, second: str, newcomer: str, what: str) -> str:
    if first == second:
        return f"plugin {first!r} registers the {what} twice; give each a name of its own"
    both = sorted((first, second)) if newcomer in (first, second) else [first, second]
    return f"plugins {both[0]!r} and {both[1]!r} both register the {what}; uninstall one of them"


def _key(record: Any) -> object:
    return (record.name, record.framework) if isinstance(record, records.BackendRecord) else record.name


def _what(hook: str) -> str:
    return hook.removeprefix("det_").removesuffix("s").replace("_", " ")


def _write(text: str) -> None:
    sys.stderr.write(text)


def _to_stderr(message: str) -> None:
    sys.stderr.write(f"det: {message}\n")

"""A typed face on pluggy."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pluggy

from .. import hookspecs, records
from ..adapter import Build
from ..backend import BackendRecord
from ..errors import PluginError
from ..hookspecs import hookimpl
from ._found import (
    Found,
    Lookup,
    ObserverFailure,
    PluginInfo,
    R,
    check_core,
    check_implementations,
    check_records,
    discover,
    imports_of,
    records_of,
    unfit,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ..config import ExperimentConfig, Extensions
    from ..storage import Storage


class Plugins:
    """A typed face on pluggy: one object per process, passed, never global.

    `strict` raises where a plugin is broken, which is otherwise skipped and named; `trace` prints every hook call;
    `warn` is told each sentence that a person should read, `failed` of each observer that raises.
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        trace: bool = False,
        warn: Callable[[str], None] | None = None,
        failed: Callable[[ObserverFailure], None] = lambda failure: None,
    ) -> None:
        self._strict = strict
        self._warn = warn or _to_stderr
        self._failed = failed
        self._infos: dict[str, PluginInfo] = {}
        self._frameworks: dict[str, records.Framework] | None = None  # once asked for
        self._pm = pluggy.PluginManager(hookspecs.PROJECT)
        for group in hookspecs.GROUPS:
            self._pm.add_hookspecs(group)
        self._pm.register(_AsBuilt(), name="as built")
        if trace:
            self._pm.trace.root.setwriter(_write)
            self._pm.enable_tracing()

    @classmethod
    def installed(cls, **options: Any) -> Plugins:
        """Return the plugins of every installed distribution, det's own first; the options are those of `Plugins`."""
        plugins = cls(**options)
        plugins.load(discover())
        return plugins

    def register(self, plugin: object, name: str, *, distribution: str = "", version: str = "") -> None:
        """Add a plugin: a module or an object with hook implementations.

        Raises PluginError when it implements a hook that core does not have, takes an argument that the hook does not
        give, yields what is not a record, or registers a name that is taken.
        """
        self._frameworks = None
        try:
            check_implementations(self._pm, plugin, name)
            self._pm.register(plugin, name=name)
            self._pm.check_pending()
            check_records(self._pm, name)
            self._check_observers(plugin, name)
        except BaseException as error:
            if self._pm.is_registered(plugin):
                self._pm.unregister(plugin)
            if isinstance(error, pluggy.PluginValidationError | ValueError):
                raise PluginError(unfit(name, error)) from error
            raise
        hooks = tuple(sorted(h.name for h in self._pm.get_hookcallers(plugin) or ()))
        self._infos[name] = PluginInfo(name=name, distribution=distribution, version=version, hooks=hooks)

    def load(self, found: Iterable[Found]) -> None:
        """Import and register plugins, each on its own; a broken one is skipped and named."""
        for plugin in found:
            name = plugin.entry.name
            try:
                check_core(plugin)
                loaded = (
                    plugin.entry.load()
                )  # a module as it is; a class is made, so that its state is of one `Plugins`
                made = loaded() if inspect.isclass(loaded) else loaded
                self.register(made, name, distribution=plugin.distribution, version=plugin.version)
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

    def imports(self, plugin: str) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield what a plugin registers, in words, each with the call that imports what is behind it."""
        return imports_of(self._pm, plugin)

    # Register

    def frameworks(self) -> dict[str, records.Framework]:
        if self._frameworks is None:
            self._frameworks = self._records("framework", self._pm.hook.det_frameworks)
        return self._frameworks

    def frameworks_imported(self, modules: Collection[str]) -> tuple[str, ...]:
        """Return the frameworks that code is of which imports these top-level modules, by their trials or by what they need."""
        found = self.frameworks().values()
        by_trial = tuple(f.name for f in found if f.trial.partition(":")[0].partition(".")[0] in modules)
        needs = {f.name: {re.split(r"[^\w]", need, maxsplit=1)[0] for need in f.requires} for f in found}
        return by_trial or tuple(name for name, needed in needs.items() if needed & set(modules))

    def frameworks_of(self, plugin: str) -> list[records.Framework]:
        """Return the frameworks that one plugin registers."""
        return records_of(self._pm, plugin, "det_frameworks")

    def backends(self) -> list[BackendRecord]:
        """All backends; a name may serve several frameworks, once each."""
        return [r for rs in self._pm.hook.det_backends() for r in rs]

    def searchers(self) -> dict[str, records.SearcherRecord]:
        return self._records("searcher", self._pm.hook.det_searchers)

    def storages(self) -> dict[str, records.StorageRecord]:
        return self._records("storage", self._pm.hook.det_storages)

    def launchers(self) -> dict[str, records.LauncherRecord]:
        return self._records("launcher", self._pm.hook.det_launchers)

    def engines(self) -> dict[str, records.EngineRecord]:
        return self._records("engine", self._pm.hook.det_engines)

    def environments(self) -> dict[str, records.EnvironmentRecord]:
        return self._records("maker of environments", self._pm.hook.det_environments)

    def commands(self) -> dict[str, records.CommandRecord]:
        return self._records("command", self._pm.hook.det_commands)

    def plugin_configs(self) -> dict[str, records.PluginConfig]:
        return self._records("plugin configuration", self._pm.hook.det_plugin_configs)

    def storage_of(self, config: ExperimentConfig, root: Path) -> Storage:
        """Open the checkpoint storage that a configuration names, or the directory `root` where it names none."""
        from ..storage import LocalStorage

        chosen = config.checkpoint_storage
        kind: str | None = getattr(chosen, "type", None)
        storage: Storage = LocalStorage(root) if kind is None else self.storages()[kind].open(chosen, root)
        return storage

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
        others = [plugin for plugin in self._pm.get_plugins() if self._is_other_framework(plugin, framework)]

        def call(part: str, build: Callable[[], Any], **arguments: Any) -> Any:
            return self._pm.subset_hook_caller(f"det_build_{part}", others)(build=_Once(build), **arguments)

        return Build(call)

    # Observe

    def observed(self, hook: str) -> bool:
        """Tell whether there is anybody to tell."""
        caller: pluggy.HookCaller = getattr(self._pm.hook, hook)
        return bool(caller.get_hookimpls())

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
                message = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
                self._warn(
                    f"observer {implementation.plugin_name!r} failed in {hook}: {message}; the experiment goes on"
                )
                self._failed(ObserverFailure(plugin=implementation.plugin_name, hook=hook, message=message))

    # Inside

    def _records(self, what: str, hook: Callable[[], list[Iterable[R]]]) -> dict[str, R]:
        return Lookup(what, {record.name: record for rs in hook() for record in rs})

    def _check_observers(self, plugin: object, name: str) -> None:
        for caller in self._pm.get_hookcallers(plugin) or ():
            wraps = any(i.plugin is plugin and (i.wrapper or i.hookwrapper) for i in caller.get_hookimpls())
            if wraps and hasattr(hookspecs.Observe, caller.name):
                raise PluginError(
                    f"plugin {name!r} wraps {caller.name}, which is called after the fact; implement it without wrapper=True"
                )

    def _is_other_framework(self, plugin: object, framework: str) -> bool:
        register = getattr(plugin, "det_frameworks", None)
        if register is None:
            return False
        names = {record.name for record in register()}
        return bool(names) and framework not in names


def _write(text: str) -> None:
    sys.stderr.write(text)


def _to_stderr(message: str) -> None:
    sys.stderr.write(f"det: {message}\n")


class _Once:
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

    @hookimpl(trylast=True)
    def det_build_model(self, build: _Once) -> Any:
        return build.value if build.called else build()

    det_build_optimizer = det_build_lr_scheduler = det_build_data_loader = det_build_model


def extensions_of(plugins: Plugins) -> Extensions:
    """Return the structs of strangers' searchers, storages, engines and settings, by name, each loaded when it is named."""
    from ..config import Extensions

    return Extensions(
        searchers={r.name: r.config for r in plugins.searchers().values() if r.config is not None},
        storages={r.name: r.config for r in plugins.storages().values() if r.config is not None},
        engines={r.name: r.config for r in plugins.engines().values() if r.config is not None},
        plugins={r.name: r.config for r in plugins.plugin_configs().values()},
    )

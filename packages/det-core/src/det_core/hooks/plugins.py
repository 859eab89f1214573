"""A typed interface to pluggy."""

from __future__ import annotations

import inspect
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pluggy

from ..errors import PluginError
from ..ranks.backend import BackendRecord
from ..support.installation import how_to_install
from ..train.adapter import Build
from . import hookspecs, records
from ._found import (
    KINDS,
    OURS,
    Found,
    Lookup,
    ObserverFailure,
    PluginInfo,
    blamed,
    check_core,
    check_implementations,
    check_records,
    described,
    discover,
    guarded,
    imports_of,
    records_of,
    unfit,
    yielded,
)
from ._observers import OBSERVER_SECONDS, ObserverHangs, ObserverThread
from .hookspecs import hookimpl

if TYPE_CHECKING:
    from pathlib import Path

    from ..config import ExperimentConfig, Extensions
    from ..storage import Storage


class Plugins:
    """A typed interface to pluggy. A process makes one object and passes it on.

    - `strict`: raise if a plugin is broken. Otherwise the plugin is skipped and a warning names it.
    - `trace`: print every hook call.
    - `warn`: called with each sentence that a person should read.
    - `failed`: called with each observer that raises or hangs. An observer hangs if a call takes
      longer than `observer_seconds`. Then it is switched off.
    - `own_commands`: commands that no plugin may register.
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        trace: bool = False,
        warn: Callable[[str], None] | None = None,
        failed: Callable[[ObserverFailure], None] = lambda failure: None,
        own_commands: Collection[str] = (),
        observer_seconds: float = OBSERVER_SECONDS,
    ) -> None:
        self._strict = strict
        self._warn = warn or _to_stderr
        self._failed = failed
        self._own_commands, self._observer_seconds = own_commands, observer_seconds
        self._observers: dict[str, ObserverThread] = {}
        self._switched_off: set[str] = set()
        # By hook, the observers and the arguments that they take, while nothing changes.
        self._observing: dict[str, tuple[list[pluggy.HookImpl], frozenset[str]]] = {}
        self._infos: dict[str, PluginInfo] = {}
        # Set on first use.
        self._frameworks: dict[str, records.Framework] | None = None
        self._pm = pluggy.PluginManager(hookspecs.PROJECT)
        for group in hookspecs.GROUPS:
            self._pm.add_hookspecs(group)
        self._pm.register(_AsBuilt(), name="as built")
        self._traces = trace
        if trace:
            self._pm.trace.root.setwriter(_write)
            self._pm.enable_tracing()

    @classmethod
    def installed(cls, **options: Any) -> Plugins:
        """Return the plugins of every installed distribution, det's own first.

        The options are those of `Plugins`.
        """
        plugins = cls(**options)
        plugins.load(discover())
        return plugins

    def register(
        self, plugin: object, name: str, *, distribution: str = "", version: str = ""
    ) -> None:
        """Add a plugin: a module or an object with hook implementations.

        `name` is the plugin's name in messages and in `infos`. A refused plugin is not added.
        Raises PluginError if

        - another plugin has this name,
        - the plugin implements a hook that det-core does not have, or with an argument that the
          hook does not pass,
        - a hook yields something else than its records, or a record, such as a framework or a
          command, with a name that another plugin has registered.
        """
        self._frameworks = None
        self._observing.clear()
        try:
            check_implementations(self._pm, plugin, name)
            self._pm.register(plugin, name=name)
            self._pm.check_pending()
            check_records(self._pm, name, self._own_commands)
            self._check_observers(plugin, name)
        except BaseException as error:
            if self._pm.is_registered(plugin):
                self._pm.unregister(plugin)
            if isinstance(error, pluggy.PluginValidationError | ValueError):
                raise PluginError(unfit(name, error)) from error
            raise
        hooks = tuple(sorted(h.name for h in self._pm.get_hookcallers(plugin) or ()))
        self._infos[name] = PluginInfo(
            name=name, distribution=distribution, version=version, hooks=hooks
        )

    def load(self, found: Iterable[Found]) -> None:
        """Import and register plugins. A broken one is skipped, and a warning names it.

        What they print goes to stderr, as stdout is the command's.
        """
        for plugin in found:
            name, began = plugin.entry.name, time.monotonic()
            try:
                check_core(plugin)
                with redirect_stdout(sys.stderr), blamed(name, "its import"):
                    # A class is instantiated, so that each `Plugins` has its own state. A module is
                    # used directly.
                    loaded = plugin.entry.load()
                    made = loaded() if inspect.isclass(loaded) else loaded
                    seconds = time.monotonic() - began
                    self.register(
                        made, name, distribution=plugin.distribution, version=plugin.version
                    )
                self._infos[name] = replace(self._infos[name], seconds=seconds)
            except Exception as error:
                if self._strict:
                    raise
                text = (
                    f"{type(error).__name__}: {error}"
                    if not isinstance(error, PluginError)
                    else str(error)
                )
                problem = " ".join(text.split())
                self._infos[name] = PluginInfo(
                    name=name,
                    distribution=plugin.distribution,
                    version=plugin.version,
                    problem=problem,
                )
                self._warn(
                    f"skipped plugin {name!r} of {plugin.distribution} {plugin.version}: {problem};"
                    " set DET_STRICT_PLUGINS=1 to raise"
                )

    @property
    def infos(self) -> list[PluginInfo]:
        """Every plugin that was found, sorted by name. Skipped ones are included."""
        return sorted(self._infos.values(), key=lambda info: info.name)

    def imports(self, plugin: str) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield a description of each record of a plugin, with a call that imports its module."""
        return imports_of(self._pm, plugin)

    # Register

    def frameworks(self) -> dict[str, records.Framework]:
        if self._frameworks is None:
            self._frameworks = self._records("framework", self._pm.hook.det_frameworks)
        return self._frameworks

    def frameworks_imported(self, modules: Collection[str]) -> tuple[str, ...]:
        """Return the frameworks of code that imports these top-level modules.

        They are found by the modules of their trials, else by their requirements.
        """
        found = self.frameworks().values()
        by_trial = tuple(
            f.name for f in found if f.trial.partition(":")[0].partition(".")[0] in modules
        )
        needs = {
            f.name: {re.split(r"[^\w]", need, maxsplit=1)[0] for need in f.requires} for f in found
        }
        return by_trial or tuple(name for name, needed in needs.items() if needed & set(modules))

    def frameworks_of(self, plugin: str) -> list[records.Framework]:
        """Return the frameworks that one plugin registers."""
        return records_of(self._pm, plugin, "det_frameworks")

    def backends(self) -> list[BackendRecord]:
        """Return all backends. A name may serve several frameworks, once each."""
        return [*self._yielded(self._pm.hook.det_backends)]

    def searchers(self) -> dict[str, records.SearcherRecord]:
        return self._records("searcher", self._pm.hook.det_searchers)

    def samplers(self) -> dict[str, Callable[..., Any]]:
        """Return the functions that make the samplers of all searchers, by name."""
        return {
            name: make
            for record in self.searchers().values()
            for name, make in record.samplers.items()
        }

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
        """Open the checkpoint storage that a configuration names, else the directory `root`."""
        from ..storage import LocalStorage

        chosen = config.checkpoint_storage
        kind: str | None = getattr(chosen, "type", None)
        storage: Storage = (
            LocalStorage(root) if kind is None else self.storages()[kind].open(chosen, root)
        )
        return storage

    def framework_of(self, trial: type) -> records.Framework:
        """Return the framework whose trial class is the nearest base of `trial`.

        Raises PluginError if there is none.
        """
        frameworks = self.frameworks()
        for base in trial.__mro__:
            for framework in frameworks.values():
                package, _, name = framework.trial.partition(":")
                if base.__qualname__ == name and base.__module__.partition(".")[0] == package:
                    return framework
        known = ", ".join(f"{f.trial.replace(':', '.')}" for f in frameworks.values()) or "none"
        raise PluginError(
            f"{trial.__module__}.{trial.__qualname__} is not a trial of an installed framework;"
            f" derive it from one of: {known}, or install its plugin, as in:"
            f" {how_to_install('det-torch')}"
        )

    # Build

    def build(self, framework: str) -> Build:
        """Return the build hooks of `framework`. Plugins of other frameworks do not take part."""
        others = [
            plugin
            for plugin in self._pm.get_plugins()
            if self._is_other_framework(plugin, framework)
        ]

        def call(part: str, build: Callable[[], Any], **arguments: Any) -> Any:
            once = _Once(build)
            try:
                return self._pm.subset_hook_caller(f"det_build_{part}", others)(
                    build=once, **arguments
                )
            except SystemExit as error:
                if error is once.raised:
                    raise
                where = traceback.extract_tb(error.__traceback__)[-1]
                raise PluginError(
                    f"a plugin called sys.exit({error.code!r}) in det_build_{part}"
                    f" ({where.filename}:{where.lineno}); mend it, or uninstall the package that"
                    " brings it"
                ) from error

        return Build(call)

    # Observe

    def observed(self, hook: str, argument: str | None = None) -> bool:
        """Return whether the hook has an observer, or one that takes an argument."""
        observers, arguments = self._observers_of(hook)
        return bool(observers) if argument is None else argument in arguments

    def _observers_of(self, hook: str) -> tuple[list[pluggy.HookImpl], frozenset[str]]:
        """Return the observers of a hook that are not switched off, and what they take."""
        if hook not in self._observing:
            caller: pluggy.HookCaller = getattr(self._pm.hook, hook)
            observers = [
                each
                for each in caller.get_hookimpls()
                if each.plugin_name not in self._switched_off
            ]
            arguments = frozenset(name for each in observers for name in each.argnames)
            self._observing[hook] = observers, arguments
        return self._observing[hook]

    def observe(self, hook: str, **arguments: Any) -> None:
        """Call every observer of a hook, even if others fail.

        One that raises is named in a warning, and one that hangs is switched off. Those of other
        distributions are called in a thread each, with copies of the arguments. What they print
        goes to stderr.
        """
        if self._traces:
            self._pm.trace.root.get("hook")(hook, arguments)
        for implementation in self._observers_of(hook)[0]:
            plugin = implementation.plugin_name
            wanted = {name: arguments[name] for name in implementation.argnames}
            try:
                if self._is_of_others(plugin):
                    self._observe_apart(plugin, implementation.function, wanted)
                else:
                    implementation.function(**wanted)
            except ObserverHangs as error:
                self._switched_off.add(plugin)
                self._observing.clear()
                self._observer_failed(plugin, hook, f"{error}; it is switched off", error)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and not self._is_of_others(plugin):
                    raise
                where = traceback.extract_tb(error.__traceback__)[-1]
                self._observer_failed(
                    plugin, hook, f"{described(error)} ({where.filename}:{where.lineno})", error
                )

    def give_up_observers(self) -> None:
        """Stop waiting for observers that are being called.

        For any thread, and for signal handlers.
        """
        for thread in [*self._observers.values()]:
            thread.give_up()

    def _is_of_others(self, plugin: str) -> bool:
        info = self._infos.get(plugin)
        return info is not None and bool(info.distribution) and info.distribution not in OURS

    def _observe_apart(
        self, plugin: str, function: Callable[..., object], wanted: dict[str, Any]
    ) -> None:
        copies = {
            name: value if name == "experiment" else deepcopy(value)
            for name, value in wanted.items()
        }
        if plugin not in self._observers:
            self._observers[plugin] = ObserverThread(plugin)
        with redirect_stdout(sys.stderr):
            self._observers[plugin].call(partial(function, **copies), self._observer_seconds)

    def _observer_failed(self, plugin: str, hook: str, message: str, error: BaseException) -> None:
        if self._strict:
            if isinstance(error, Exception) and not isinstance(error, ObserverHangs):
                raise error
            raise PluginError(f"observer {plugin!r} failed in {hook}: {message}") from error
        self._warn(f"observer {plugin!r} failed in {hook}: {message}; the experiment goes on")
        self._failed(ObserverFailure(plugin=plugin, hook=hook, message=message))

    # Inside

    def _records(self, what: str, hook: Any) -> dict[str, Any]:
        return Lookup(what, {record.name: record for record in self._yielded(hook)})

    def _yielded(self, hook: Any) -> Iterator[Any]:
        """Yield the records of all plugins, the newest plugin's first.

        Those of others are guarded.
        """
        self._pm.trace.root.get("hook")(hook.name, {})
        for implementation in reversed(hook.get_hookimpls()):
            plugin = implementation.plugin_name
            for record in yielded(implementation, hook.name, KINDS[hook.name]):
                yield guarded(plugin, record) if self._is_of_others(plugin) else record

    def _check_observers(self, plugin: object, name: str) -> None:
        for caller in self._pm.get_hookcallers(plugin) or ():
            wraps = any(
                i.plugin is plugin and (i.wrapper or i.hookwrapper) for i in caller.get_hookimpls()
            )
            if wraps and hasattr(hookspecs.Observe, caller.name):
                raise PluginError(
                    f"plugin {name!r} wraps {caller.name}, which is called after the fact;"
                    " implement it without wrapper=True"
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
    """The function that builds the user's object.

    It keeps the result, so that the object is built only once unless a plugin calls it again.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self.called, self.value = False, None
        self.raised: SystemExit | None = None

    def __call__(self) -> Any:
        try:
            self.value = self._build()
        # The user's code called sys.exit.
        except SystemExit as error:
            self.raised = error
            raise
        self.called = True
        return self.value


class _AsBuilt:
    """The last implementation of the build hooks: returns the user's object unchanged."""

    @hookimpl(trylast=True)
    def det_build_model(self, build: _Once) -> Any:
        return build.value if build.called else build()

    det_build_optimizer = det_build_lr_scheduler = det_build_data_loader = det_build_model


def extensions_of(plugins: Plugins) -> Extensions:
    """Return the structs of settings of other distributions' plugins, by name.

    They are those of searchers, storages, engines and plugins. Each is loaded when it is named.
    """
    from ..config import Extensions

    return Extensions(
        searchers={r.name: r.config for r in plugins.searchers().values() if r.config is not None},
        storages={r.name: r.config for r in plugins.storages().values() if r.config is not None},
        engines={r.name: r.config for r in plugins.engines().values() if r.config is not None},
        plugins={r.name: r.config for r in plugins.plugin_configs().values()},
    )

"""What plugins register: frozen records, each with a name; that of a backend is beside `Backend`.

A record's callables import what they need when they are called, so that registering costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .adapter import Adapter

if TYPE_CHECKING:
    from .launcher import Launcher


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One supported framework.

    `trial` names the class that its trials derive from, as `package:Class`; a trial is recognised by the top-level
    package and the name of its bases, so that nothing is imported to tell whose it is. `load` returns the adapter and
    is the only thing that may import the framework. `requires` are PEP 508 requirements, shown by `det plugins`. `loader`
    names the function, as `package.function`, that makes a trial or model from the path of a checkpoint, `tensors` the one that
    reads its weights and what else decides how training goes on, as arrays by name, for `det verify`. `exporters` name, by
    format, the functions that write its model for `det checkpoint export`, given the paths of the checkpoint and of a directory.
    """

    name: str
    trial: str
    load: Callable[[], type[Adapter[Any]]]
    requires: tuple[str, ...] = ()
    capabilities: frozenset[str] = frozenset()
    loader: str = ""
    tensors: str = ""
    exporters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SearcherRecord:
    """One searcher: `make(config, hyperparameters, seed)` returns it, `config()` the struct of its settings."""

    name: str
    make: Callable[..., Any]
    config: Callable[[], type] | None = None


@dataclass(frozen=True, kw_only=True)
class StorageRecord:
    """One type of checkpoint storage: `open(config, default_root)` returns it, `config()` the struct of its settings."""

    name: str
    open: Callable[..., Any]
    config: Callable[[], type] | None = None


@dataclass(frozen=True, kw_only=True)
class LauncherRecord:
    """What the ranks of one framework must be told to meet, for `det launch NAME`; `load()` returns the `Launcher`."""

    name: str
    load: Callable[[], Launcher]


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """One place where runs can be executed; `load()` returns the engine's class, `config()` the struct of its settings."""

    name: str
    load: Callable[[], Any]
    config: Callable[[], type] | None = None


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecord:
    """One way to make environments for experiments; `load()` returns the class, a `det_core.environments.EnvironmentMaker`."""

    name: str
    load: Callable[[], Any]
    images: bool = False
    """Whether it runs container images, and does not install requirements."""


@dataclass(frozen=True, kw_only=True)
class CommandRecord:
    """One subcommand of `det`; `load()` returns a click command, `help` is its line in `det --help`."""

    name: str
    load: Callable[[], Any]
    help: str = ""


@dataclass(frozen=True, kw_only=True)
class PluginConfig:
    """The settings that a plugin accepts under `plugins.NAME` in an experiment configuration."""

    name: str
    config: Callable[[], type]

"""The records that plugins register: frozen, each with a name.

`Backend` has its record in `backend`.

A record's callables import what they need when they are called, so that registering costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..train.adapter import Adapter

if TYPE_CHECKING:
    from ..ranks.launcher import Launcher


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One supported framework.

    - `trial`: the class that its trials derive from, as `package:Class`. A trial is recognised by
      the top-level package and the name of its bases, without an import.
    - `load`: returns the adapter. It alone may import the framework.
    - `requires`: PEP 508 requirements, shown by `det plugins`.
    - `loader`: the function, as `package.function`, that makes a trial or model from the path of a
      checkpoint.
    - `tensors`: the function that reads, as arrays by name, a checkpoint's weights and the other
      state that decides how training continues. For `det verify`.
    - `exporters`: the functions, by format, that write its model for `det checkpoint export`. They
      get the paths of the checkpoint and of a directory.
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
    """One searcher: `make(config, hyperparameters, seed)` returns it.

    `config()` returns the struct of its settings. `samplers` are those that `searcher.sampler` may
    name with any schedule. Each is called with the settings, the hyperparameters and the limits of
    the space, and returns a `det_driver.search.Sampler`.
    """

    name: str
    make: Callable[..., Any]
    config: Callable[[], type] | None = None
    samplers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StorageRecord:
    """One type of checkpoint storage: `open(config, default_root)` returns it.

    `config()` returns the struct of its settings.
    """

    name: str
    open: Callable[..., Any]
    config: Callable[[], type] | None = None


@dataclass(frozen=True, kw_only=True)
class LauncherRecord:
    """How the ranks of one framework get what they need to connect, for `det launch NAME`.

    `load()` returns the `Launcher`.
    """

    name: str
    load: Callable[[], Launcher]


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """One engine, which executes runs: `load()` returns its class.

    `config()` returns the struct of its settings.
    """

    name: str
    load: Callable[[], Any]
    config: Callable[[], type] | None = None


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecord:
    """One way to make environments for experiments.

    `load()` returns the class, a `det_node.environments.EnvironmentMaker`.
    """

    name: str
    load: Callable[[], Any]
    images: bool = False
    """Whether it runs container images instead of installing requirements."""


@dataclass(frozen=True, kw_only=True)
class CommandRecord:
    """One subcommand of `det`.

    `load()` returns a click command, and `help` is its line in `det --help`.
    """

    name: str
    load: Callable[[], Any]
    help: str = ""


@dataclass(frozen=True, kw_only=True)
class PluginConfig:
    """The settings that a plugin accepts under `plugins.NAME` in an experiment configuration."""

    name: str
    config: Callable[[], type]

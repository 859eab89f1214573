"""The settings of each engine. `engine.name` chooses one."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from .fields import REST, needed


class EngineConfig(Struct, frozen=True, kw_only=True, tag_field="name"):
    """Where runs are executed."""


class Local(EngineConfig, frozen=True, tag="local"):
    """On this machine."""


class InProcess(EngineConfig, frozen=True, tag="in-process"):
    """In the driver's own process, one at a time."""


class Ssh(EngineConfig, frozen=True, tag="ssh"):
    """On other machines, each trial on one of them, or on several where none has slots enough.

    They need det and what the trial needs, and no directory in common.
    """

    hosts: Annotated[tuple[str, ...], Meta(min_length=1), needed("name the machines")]
    """The machines, as ssh knows them."""
    agent: str | None = None
    """The command that runs what follows it on `{host}`.

    By default `ssh -o BatchMode=yes {host}`.
    """


class UnknownEngine(Struct, frozen=True):
    """A plugin's engine, read without the plugin. Its keys are kept as written."""

    options: Annotated[dict[str, Any], REST] = {}


ENGINES: dict[str, type[Struct]] = {"in-process": InProcess, "local": Local, "ssh": Ssh}

"""Registers the environment makers and the command `det env`. Imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name

from det_core import CommandRecord, EnvironmentRecord, hookimpl


@hookimpl
def det_environments() -> Iterator[EnvironmentRecord]:
    yield EnvironmentRecord(name="uv", load=partial(resolve_name, "det_env.maker:UvMaker"))
    load = partial(resolve_name, "det_env.container:ContainerMaker")
    yield EnvironmentRecord(name="container", load=load, images=True)


@hookimpl
def det_commands() -> Iterator[CommandRecord]:
    load = partial(resolve_name, "det_env.command:env")
    yield CommandRecord(
        name="env", load=load, help="List, build and remove environments of experiments."
    )

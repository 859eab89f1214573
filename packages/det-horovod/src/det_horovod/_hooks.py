"""Registers Horovod's launcher and `det horovod`. Imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from det_core import CommandRecord, Launcher, LauncherRecord, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def det_launchers() -> Iterator[LauncherRecord]:
    yield LauncherRecord(name="horovod", load=_launcher)


@hookimpl
def det_commands() -> Iterator[CommandRecord]:
    yield CommandRecord(
        name="horovod",
        load=_command,
        help="Build Horovod for this environment, and check that it works.",
    )


def _launcher() -> Launcher:
    from .launch import Horovod

    return Horovod()


def _command() -> click.Command:
    from .cli import horovod

    return horovod

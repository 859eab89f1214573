"""Registers `det plugin`; imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from det_core import CommandRecord, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def det_commands() -> Iterator[CommandRecord]:
    yield CommandRecord(name="plugin", load=_command, help="About plugins of your own: write a new one.")


def _command() -> click.Command:
    from .cli import plugin

    return plugin

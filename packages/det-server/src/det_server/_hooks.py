"""Registers `det server`. Imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name

from det_core import CommandRecord, hookimpl


@hookimpl
def det_commands() -> Iterator[CommandRecord]:
    load = partial(resolve_name, "det_server.command:server")
    yield CommandRecord(name="server", load=load, help="Serve a home to a team, with users.")

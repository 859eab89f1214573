"""Registers `det migrate`. Imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name

from det_core import CommandRecord, hookimpl


@hookimpl
def det_commands() -> Iterator[CommandRecord]:
    load = partial(resolve_name, "det_migrate.command:migrate")
    yield CommandRecord(
        name="migrate", load=load, help="Import the history of Determined, MLflow and others."
    )

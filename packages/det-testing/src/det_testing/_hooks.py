"""Registers `det plugin`. Imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from det_core import CommandRecord, hookimpl


@hookimpl
def det_commands() -> Iterator[CommandRecord]:
    def load() -> Any:
        return import_module(f"{__package__}.scaffold").plugin

    yield CommandRecord(
        name="plugin", load=load, help="About plugins of your own: write a new one."
    )

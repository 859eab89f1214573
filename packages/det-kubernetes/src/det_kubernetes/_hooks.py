"""Registers the engine `kubernetes` with det. Imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name

from det_core import EngineRecord, hookimpl


@hookimpl
def det_engines() -> Iterator[EngineRecord]:
    engine, settings = (
        partial(resolve_name, f"det_kubernetes:Kubernetes{name}") for name in ("Engine", "Settings")
    )
    yield EngineRecord(name="kubernetes", load=engine, config=settings)

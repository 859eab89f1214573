"""Registers the engine `ray` with det. Imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name

from det_core import EngineRecord, hookimpl


@hookimpl
def det_engines() -> Iterator[EngineRecord]:
    engine, settings = (
        partial(resolve_name, f"det_ray:{name}") for name in ("RayEngine", "RaySettings")
    )
    yield EngineRecord(name="ray", load=engine, config=settings)

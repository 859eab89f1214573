"""The engines that need nothing installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..hookspecs import hookimpl
from ..records import EngineRecord


@hookimpl
def det_engines() -> Iterator[EngineRecord]:
    yield EngineRecord(name="local", load=_local)
    yield EngineRecord(name="in-process", load=_in_process)


def _local() -> Any:
    from ..engines.local import LocalEngine

    return LocalEngine


def _in_process() -> Any:
    from ..engines.in_process import InProcessEngine

    return InProcessEngine

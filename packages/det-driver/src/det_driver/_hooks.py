"""The engines and searchers of det-driver, registered like those of any plugin."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pkgutil import resolve_name
from typing import Any

from det_core import EngineRecord, SearcherRecord, hookimpl

_ENGINES = {
    "local": "local:LocalEngine",
    "in-process": "in_process:InProcessEngine",
    "ssh": "ssh:SshEngine",
}
_SEARCHERS = (
    "single",
    "random",
    "grid",
    "async_halving",
    "adaptive_asha",
    "hyperband",
    "pbt",
    "custom",
    "combined",
    "auto",
)


@hookimpl
def det_engines() -> Iterator[EngineRecord]:
    for name, place in _ENGINES.items():
        yield EngineRecord(name=name, load=partial(resolve_name, f"det_driver.engines.{place}"))


@hookimpl
def det_searchers() -> Iterator[SearcherRecord]:
    for name in _SEARCHERS:
        yield SearcherRecord(name=name, make=_make)


def _make(*arguments: Any) -> Any:
    from .search import make

    return make(*arguments)

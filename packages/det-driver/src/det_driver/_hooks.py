"""What det-driver brings: engines and searchers, registered as strangers register theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from det_core import EngineRecord, SearcherRecord, hookimpl

_ENGINES = {"local": "local:LocalEngine", "in-process": "in_process:InProcessEngine"}
_SEARCHERS = {
    "single": "_single",
    "random": "_random",
    "grid": "_grid",
    "async_halving": "_async_halving",
    "adaptive_asha": "_adaptive_asha",
    "hyperband": "_hyperband",
    "pbt": "_pbt",
    "custom": "_custom",
}


@hookimpl
def det_engines() -> Iterator[EngineRecord]:
    for name, place in _ENGINES.items():
        yield EngineRecord(name=name, load=_engine(place))


@hookimpl
def det_searchers() -> Iterator[SearcherRecord]:
    for name, module in _SEARCHERS.items():
        yield SearcherRecord(name=name, make=partial(_make, module))


def _engine(place: str) -> Callable[[], Any]:
    module, _, name = place.partition(":")
    return lambda: getattr(import_module(f"det_driver.engines.{module}"), name)


def _make(module: str, *arguments: Any) -> Any:
    return import_module(f"det_driver.search.{module}").make(*arguments)

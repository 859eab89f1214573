"""The searchers that need nothing installed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from ..hookspecs import hookimpl
from ..records import SearcherRecord

_MODULES = {
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
def det_searchers() -> Iterator[SearcherRecord]:
    for name, module in _MODULES.items():
        yield SearcherRecord(name=name, make=partial(_make, module))


def _make(module: str, *arguments: Any) -> Any:
    return import_module(f"det_core.searchers.{module}").make(*arguments)

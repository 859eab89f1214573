"""Registers Optuna's samplers with det; imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from det_core import SearcherRecord, hookimpl


@hookimpl
def det_searchers() -> Iterator[SearcherRecord]:
    yield SearcherRecord(name="optuna", make=_make, config=_config)


def _make(*arguments: Any) -> Any:
    from .search import make

    return make(*arguments)


def _config() -> type:
    from .config import Optuna

    return Optuna

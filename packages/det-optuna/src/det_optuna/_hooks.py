"""Registers Optuna's samplers with det. Imports det_core only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from det_core import SearcherRecord, hookimpl


@hookimpl
def det_searchers() -> Iterator[SearcherRecord]:
    yield SearcherRecord(name="optuna", make=_make, config=_config, samplers=_samplers())


def _make(*arguments: Any) -> Any:
    from .search import make

    return make(*arguments)


def _samplers() -> dict[str, Callable[..., Any]]:
    return {name: partial(_sampler, name) for name in ("tpe", "gp", "cmaes", "qmc", "nsgaii")}


def _sampler(name: str, *arguments: Any) -> Any:
    from .pairs import make_sampler

    return make_sampler(name, *arguments)


def _config() -> type:
    from .config import Optuna

    return Optuna

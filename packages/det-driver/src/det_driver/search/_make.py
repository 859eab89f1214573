"""From the searcher's section of a configuration to the searcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from det_core import config as settings
from det_core.config import Hyperparameter
from det_core.errors import PluginError

from . import _adaptive_asha, _async_halving, _custom, _grid, _hyperband, _pbt, _random, _single
from .base import Searcher

_MAKERS: dict[type, Callable[[Any, Mapping[str, Hyperparameter], int], Searcher]] = {
    settings.AdaptiveAsha: _adaptive_asha.make,
    settings.AsyncHalving: _async_halving.make,
    settings.Custom: _custom.make,
    settings.Grid: _grid.make,
    settings.Hyperband: _hyperband.make,
    settings.Pbt: _pbt.make,
    settings.Random: _random.make,
    settings.Single: _single.make,
}


def make(config: object, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Searcher:
    """Return the built-in searcher of these settings; a stranger's is made by its record.

    The same settings and seed (`reproducibility.experiment_seed`) give the same search.
    """
    maker = _MAKERS.get(type(config))
    if maker is None:
        raise PluginError(f"{type(config).__name__} is no built-in searcher's settings; make it by its record")
    return maker(config, hyperparameters, seed)

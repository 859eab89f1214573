"""Optuna's samplers as a searcher for det."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .config import Optuna as Optuna
    from .search import OptunaSearch as OptunaSearch
    from .search import make as make

__version__ = "0.1.0"

lazy(__name__)

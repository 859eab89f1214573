"""The search of a single trial."""

from __future__ import annotations

from collections.abc import Mapping

from det_core.config import Hyperparameter, Single

from ._lengths import length_if_any
from ._random import RandomSearch
from ._search import Search


def make(config: Single, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return a search of one trial, whose hyperparameters are drawn once; it is not replaced if they are invalid."""
    max_length = length_if_any(config.max_length, "searcher.max_length")
    return Search(RandomSearch(max_trials=1, max_length=max_length, replace_invalid=False), hyperparameters, seed)

"""Begins a search, with the results of the earlier experiments in `searcher.learn_from`."""

from __future__ import annotations

import math
from typing import Any

from det_core.config import ExperimentConfig, Length
from det_core.errors import ConfigError

from ..search import EarlierResult
from ..space import leaves
from ..store import Store
from ._search import SearchStarted, SearchTaught
from ._state import State

MOST_RESULTS = 200
"""The most results that a search begins with.

Those of the longest trainings, then the best, win.
"""


def begin_search(state: State) -> None:
    """Start the search of an experiment unless it has started, with the results of earlier ones."""
    if state.search.plans:
        return
    if results := read_earlier(state.store, state.config):
        state.append_event(SearchTaught(results))
    state.append_event(SearchStarted())


def check_earlier(store: Store, config: ExperimentConfig) -> None:
    """Check the experiments in `searcher.learn_from`, and the searcher's source.

    - StoreError: one does not exist for the user of the store.
    - ConfigError: one has another metric.
    """
    searcher = config.searcher
    if searcher is not None and searcher.source_trial_id is not None:
        store.trials.get(searcher.source_trial_id)
    if searcher is not None and searcher.source_checkpoint_uuid is not None:
        store.checkpoints.check_visible(searcher.source_checkpoint_uuid)
    for id in getattr(searcher, "learn_from", ()):
        earlier = store.experiments.get(id)
        if searcher is None or earlier.metric != searcher.metric:
            wanted = searcher.metric if searcher else ""
            raise ConfigError(
                f"searcher.learn_from names experiment {id}, whose metric is {earlier.metric!r},"
                f" and searcher.metric is {wanted!r}; name experiments of the same metric"
            )


def read_earlier(store: Store, config: ExperimentConfig) -> tuple[EarlierResult, ...]:
    """Return the results of earlier experiments, with lengths in the unit of this search.

    A training counts as long as its share of the longest one of its experiment, so that full
    trainings are full ones here, whatever the unit; without a length of this search it is in
    batches.
    """
    check_earlier(store, config)
    searcher: Any = config.searcher
    length = getattr(searcher, "max_length", None)
    whole = length.n if isinstance(length, Length) else getattr(searcher, "max_time", None)
    found = []
    for id in getattr(searcher, "learn_from", ()):
        names = [name for name, _ in leaves(store.experiments.config(id).hyperparameters)]
        trials = [trial for trial in store.trials.list(id) if _is_usable(trial.best_metric)]
        longest = max((trial.batches for trial in trials), default=0) or 1
        for trial in trials:
            values = {name: _value(trial.hparams, name) for name in names}
            hparams = {name: value for name, value in values.items() if value is not None}
            trained = float(trial.batches) if whole is None else whole * trial.batches / longest
            found.append(EarlierResult(hparams, trained, trial.best_metric or 0.0))
    sign = 1 if searcher is None or searcher.smaller_is_better else -1
    return tuple(
        sorted(found, key=lambda result: (-result.length, sign * result.metric))[:MOST_RESULTS]
    )


def _is_usable(metric: float | None) -> bool:
    return metric is not None and math.isfinite(metric)


def _value(hparams: Any, name: str) -> Any:
    """Return a value by its dotted name, or None if the trial does not have it."""
    for part in name.split("."):
        if not isinstance(hparams, dict) or part not in hparams:
            return None
        hparams = hparams[part]
    return hparams

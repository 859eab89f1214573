"""A search by one of Optuna's samplers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_core.config import Hyperparameter
from det_core.errors import ConfigError
from det_driver.search import (
    Close,
    Exit,
    Limits,
    Method,
    Operation,
    Search,
    Train,
    TrialFactory,
    read_number,
)

from .config import Optuna
from .samplers import sampler_of
from .space import Space
from .study import Suggestions

LARGEST = 1e100
"""A larger metric counts as infinite, because samplers' sums and squares of it overflow."""
PATIENCE = 5
"""After so many invalid suggestions in a row, the next ones are drawn at random.

A model that gets no results would repeat itself.
"""


def make(config: Optuna, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return a search by a sampler of Optuna, seeded with `seed`.

    Raises ConfigError if the settings contradict each other, and PluginError if a package is
    missing.
    """
    _check_lengths(config)
    directions = [config.smaller_is_better]
    if config.second_metric is not None:
        directions.append(config.second_smaller_is_better)
    sampler = sampler_of(config, seed)
    limits = Limits(hyperparameters, config.constraints)
    study = Suggestions(Space(hyperparameters, limits), sampler, seed, directions)
    return Search(OptunaSearch(config, study), hyperparameters, seed, limits=limits)


class OptunaSearch(Method):
    """Trains `max_trials` trials with hyperparameters that a sampler suggests.

    Each suggestion uses the results so far. At most `max_concurrent_trials` are open at a time, and
    the sampler knows which ones. A trial's result is its metric at `max_length` (or `max_time`), or
    its last metric if it ended earlier by itself.

    A trial whose metric is NaN or infinite, or that raises InvalidHP, is set aside: TPE with one
    metric avoids its hyperparameters. A trial that raises InvalidHP is replaced and does not count.
    A trial that ends for another reason gives the sampler no result.

    Sources: Akiba et al. 2019, "Optuna: A Next-generation Hyperparameter Optimization Framework",
    KDD. For TPE, Bergstra et al. 2011, NeurIPS. For CMA-ES, Hansen and Ostermeier 2001. For
    NSGA-II, Deb et al. 2002.
    """

    def __init__(self, config: Optuna, study: Suggestions) -> None:
        self.metric = config.metric
        self.time_metric = config.time_metric
        self._second_metric = config.second_metric
        self._until = config.max_length.n if config.max_length is not None else config.max_time
        self._max_trials = config.max_trials
        self._max_concurrent = config.max_concurrent_trials or config.max_trials
        self._study = study
        # The last values of each open trial, or None if they are not finite.
        self._latest: dict[int, list[float] | None] = {}
        self._invalid = 0
        self._invalid_in_a_row = 0
        self._finished = 0

    def begin(self, factory: TrialFactory) -> list[Operation]:
        return [
            op
            for _ in range(min(self._max_trials, self._max_concurrent))
            for op in self._create(factory)
        ]

    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        values = self._values(metrics)
        time = self.read_time(length, metrics)
        if self._until is None or time < self._until:
            self._latest[trial] = values
            return []
        self._report_result(trial, values)
        return [Close(trial)]

    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        if reason is Exit.INVALID_HP and not closed:
            self._invalid += 1
        else:
            self._finished += 1
        if not closed:
            self._end(trial, reason)
        more = factory.count - self._invalid < self._max_trials
        return self._create(factory) if more else []

    def progress(self, going: Mapping[int, float]) -> float:
        return (self._finished + sum(going.values())) / self._max_trials

    def state(self) -> dict[str, Any]:
        return {
            "study": self._study.past(),
            "memory": self._study.memory(),
            "latest": [[trial, values and list(values)] for trial, values in self._latest.items()],
            "invalid": self._invalid,
            "invalid_in_a_row": self._invalid_in_a_row,
            "finished": self._finished,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._study.relive(state["study"], state["memory"])
        self._latest = dict(state["latest"])
        self._invalid = state["invalid"]
        self._invalid_in_a_row = state["invalid_in_a_row"]
        self._finished = state["finished"]

    def _create(self, factory: TrialFactory) -> list[Operation]:
        at_random = self._invalid_in_a_row >= PATIENCE
        create = factory.create(self._study.draw() if at_random else self._study.ask())
        return [create, Train(create.trial, self._until)]

    def _end(self, trial: int, reason: Exit) -> None:
        if reason is Exit.COMPLETED and trial in self._latest:
            self._report_result(trial, self._latest[trial])
            return
        self._latest.pop(trial, None)
        if reason is Exit.INVALID_HP:
            self._invalid_in_a_row += 1
            self._study.set_aside(trial)
        else:
            self._study.forget(trial)

    def _report_result(self, trial: int, values: list[float] | None) -> None:
        self._latest.pop(trial, None)
        self._invalid_in_a_row = 0
        if values is None:
            self._study.set_aside(trial)
        else:
            self._study.tell(trial, values)

    def _values(self, metrics: Mapping[str, float]) -> list[float] | None:
        values = [read_number("searcher.metric", str(self.metric), metrics)]
        if self._second_metric is not None:
            values.append(read_number("searcher.second_metric", self._second_metric, metrics))
        return values if all(abs(value) <= LARGEST for value in values) else None


def _check_lengths(config: Optuna) -> None:
    if config.max_length is not None and (
        config.max_time is not None or config.time_metric is not None
    ):
        raise ConfigError(
            "searcher has both max_length and max_time or time_metric; give one of the two ways"
        )
    if config.max_time is not None and config.time_metric is None:
        raise ConfigError(
            "searcher.time_metric is missing; name the validation metric that counts the time, as"
            " batches"
        )
    if config.time_metric is not None and config.max_time is None:
        raise ConfigError(
            "searcher.max_time is missing; say how long trials train, in units of time_metric"
        )

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from det_core.config import (
    AdaptiveAsha,
    AsyncHalving,
    Categorical,
    Double,
    Grid,
    Hyperband,
    Int,
    Length,
    Log,
    Pbt,
    Random,
    Single,
)
from det_driver.search import Close, Exit, Objective, Operation, Searcher, Train, TrialFactory, make
from det_driver.search._custom import CustomSearch
from det_testing import SearcherSuite

SPACE = {
    "lr": Log(minval=-5, maxval=0, count=3),
    "net": {"hidden": Int(minval=8, maxval=512, count=4), "kind": Categorical(vals=("a", "b"))},
    "dropout": Double(minval=0, maxval=0.7, count=2),
}
LENGTH = Length("batches", 100)
Make = Callable[[int], Searcher]


def maker(config: Any) -> Make:
    return lambda seed: make(config, SPACE, seed)


class TestSingle(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(Single(metric="loss", max_length=LENGTH))


class TestRandom(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(
            Random(metric="loss", max_trials=20, max_concurrent_trials=4, max_length=LENGTH)
        )


class TestRandomWithoutLength(SearcherSuite):
    label = "random without a length"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(Random(metric="loss", max_trials=20))


class TestGrid(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(Grid(metric="loss", max_length=LENGTH, max_concurrent_trials=5))


class TestAsyncHalving(SearcherSuite):
    label = "async_halving"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(
            AsyncHalving(metric="loss", num_rungs=3, max_trials=30, max_length=LENGTH, divisor=3)
        )


class TestAdaptiveAshaThatPromotes(SearcherSuite):
    label = "adaptive_asha by max_length"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(
            AdaptiveAsha(metric="loss", max_trials=40, max_length=LENGTH, mode="conservative")
        )


class TestAdaptiveAshaThatStops(SearcherSuite):
    label = "adaptive_asha by max_time"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(
            AdaptiveAsha(
                metric="acc",
                smaller_is_better=False,
                max_trials=40,
                max_time=90,
                time_metric="epochs",
            )
        )


class TestAdaptiveAshaThatStopsByLength(SearcherSuite):
    label = "adaptive_asha with stop_once"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(
            AdaptiveAsha(metric="loss", max_trials=40, max_length=LENGTH, divisor=2, stop_once=True)
        )


class TestHyperband(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(Hyperband(metric="loss", max_length=Length("epochs", 27)))


class TestPbt(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(Pbt(metric="loss", population_size=8, num_rounds=5, length_per_round=LENGTH))


class TestEvolutionFull(SearcherSuite):
    label = "one rung with evolution"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(
            AsyncHalving(
                metric="loss", sampler="evolution", num_rungs=1, max_trials=60, max_length=LENGTH
            )
        )


class TestEvolutionAsyncHalving(SearcherSuite):
    label = "async_halving with evolution"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(
            AsyncHalving(
                metric="loss",
                sampler="evolution",
                num_rungs=3,
                max_trials=70,
                max_length=LENGTH,
                divisor=3,
            )
        )


class TestEvolutionAdaptiveAshaThatStops(SearcherSuite):
    label = "adaptive_asha by max_time with evolution"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(
            AdaptiveAsha(
                metric="acc",
                smaller_is_better=False,
                sampler="evolution",
                max_trials=70,
                max_time=90,
                time_metric="epochs",
            )
        )


class Climb(Searcher):
    """A user's searcher: one trial after the other, each from the last one's checkpoint."""

    metric = "loss"

    def __init__(self, config: Any, hyperparameters: Mapping[str, Any], seed: int) -> None:
        self.factory = TrialFactory(hyperparameters, seed)
        self.ended = 0

    def start(self) -> list[Operation]:
        return self.factory.start(1, 10)

    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        Objective(self.metric).loss(metrics)
        return [Close(trial)] if length >= 10 else []

    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        self.ended += 1
        if self.factory.count == 12:
            return []
        create = self.factory.create(source=trial)
        return [create, Train(create.trial, 10)]

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        return self.ended / 12

    def state(self) -> dict[str, Any]:
        return self.factory.state() | {"ended": self.ended}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.factory.restore(state)
        self.ended = state["ended"]


class TestCustom(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return lambda seed: CustomSearch(Climb(None, SPACE, seed))

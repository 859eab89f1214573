from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from det_core.config import Categorical, Double, Int, Length, Log
from det_driver.search import Exit, Operation, Searcher
from det_optuna import Optuna, make
from det_testing import SearcherSuite

SPACE = {
    "lr": Log(minval=-5, maxval=0),
    "net": {"hidden": Int(minval=8, maxval=512), "kind": Categorical(vals=("a", "b"))},
    "dropout": Double(minval=0, maxval=0.7),
}
Make = Callable[[int], Searcher]


def maker(space: Any = SPACE, **settings: Any) -> Make:
    given = {
        "metric": "loss",
        "max_trials": 15,
        "max_concurrent_trials": 4,
        "max_length": Length("batches", 100),
    }
    config = Optuna(**{**given, **settings})
    return lambda seed: make(config, space, seed)


class TestTpe(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(startup_trials=5)


@pytest.mark.slow
class TestGp(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        pytest.importorskip("torch", reason="Optuna's GP needs it")
        # Fitting the process takes tenths of a second, and the kit searches and restores often: one
        # trial is from a fit.
        settings = {"max_trials": 10, "startup_trials": 8, "max_concurrent_trials": 2}
        return maker({"x": Double(minval=0, maxval=1)}, sampler="gp", **settings)


@pytest.mark.slow
class TestCmaEs(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(sampler="cmaes", sampler_options={"popsize": 4})


class TestQmc(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(sampler="qmc", sampler_options={"scramble": True})


class TestNsgaII(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(sampler="nsgaii", sampler_options={"population_size": 4})


class TestRandom(SearcherSuite):
    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(sampler="random", max_concurrent_trials=0)


class TestWithoutLength(SearcherSuite):
    label = "without a length"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(max_length=None, startup_trials=5)


@pytest.mark.slow
class TestTimeMetric(SearcherSuite):
    label = "by a time metric"

    @pytest.fixture
    def make_searcher(self) -> Make:
        return maker(max_length=None, max_time=100, time_metric="batches", startup_trials=5)


class Measured(Searcher):
    """Adds a second metric to what it hears, for the kit's trials report one."""

    def __init__(self, searcher: Searcher) -> None:
        self.metric = searcher.metric
        self._searcher = searcher

    def start(self) -> list[Operation]:
        return self._searcher.start()

    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        return self._searcher.validated(trial, length, {**metrics, "seconds": float(trial % 7)})

    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        return self._searcher.exited(trial, reason)

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        return self._searcher.progress(trial_progress)

    def state(self) -> dict[str, Any]:
        return self._searcher.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._searcher.restore(state)


class TestTwoMetrics(SearcherSuite):
    label = "nsgaii with two metrics"

    @pytest.fixture
    def make_searcher(self) -> Make:
        one = maker(
            sampler="nsgaii", second_metric="seconds", sampler_options={"population_size": 4}
        )
        return lambda seed: Measured(one(seed))


@pytest.mark.slow
class TestTpeWithTwoMetrics(SearcherSuite):
    label = "tpe with two metrics"

    @pytest.fixture
    def make_searcher(self) -> Make:
        one = maker(second_metric="seconds", second_smaller_is_better=False, startup_trials=5)
        return lambda seed: Measured(one(seed))

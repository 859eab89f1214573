"""What a search and a tournament do for every method, whatever it decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from det_driver.search import Close, Exit, Method, Operation, TrialFactory
from det_driver.search._search import Search, Tournament
from det_driver.search._uniform import UniformSearch
from det_driver.search.base import WORST, Objective


class Says(Method):
    """Makes four trials, and says of its progress what it was told to say."""

    version = 7
    says = 0.25

    def begin(self, factory: TrialFactory) -> list[Operation]:
        return factory.start(4, 10)

    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        return [Close(trial)]

    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        return []

    def progress(self, going: Mapping[int, float]) -> float:
        self.heard = going
        return self.says


def test_the_version_of_what_it_saves_is_its_methods() -> None:
    assert Search(Says(), {}, 0).version == 7


@pytest.mark.parametrize(
    ("says", "progress"), [(2.0, 1.0), (-1.0, 0.0), (0.25, 0.25), (math.nan, 0.0), (math.inf, 0.0)]
)
def test_progress_is_a_part_whatever_is_said_of_it(says: float, progress: float) -> None:
    method: Any = Says()
    search = Search(method, {}, 0)
    search.start()
    method.says = says
    assert search.progress(dict.fromkeys(range(4), says)) == progress
    assert method.heard == dict.fromkeys(range(4), progress)


def test_search_is_done_once_every_created_trial_has_ended() -> None:
    search = Search(Says(), {}, 0)
    assert search.progress({}) == 0.25
    search.start()
    for trial in range(4):
        assert search.progress({}) == 0.25
        search.exited(trial, Exit.ERRORED)
    assert search.progress({}) == 1.0


def test_tournament_progress_is_the_mean_of_its_brackets() -> None:
    """Each bracket counts only its own trials."""
    search = Search(
        Tournament([UniformSearch(1, max_length=10), UniformSearch(4, max_length=10)]), {}, 0
    )
    search.start()
    assert search.progress({0: 0.5, 1: 0.5, 2: 0.5}) == (0.5 + 0.25) / 2


@pytest.mark.parametrize(
    ("value", "smaller", "larger"),
    [
        *(
            (0.5, 0.5, -0.5),
            (math.nan, WORST, WORST),
            (math.inf, WORST, -WORST),
            (-math.inf, -WORST, WORST),
        ),
        *((10**400, WORST, -WORST), (-(10**400), -WORST, WORST)),
    ],
)
def test_a_metric_is_a_loss_that_json_knows(value: float, smaller: float, larger: float) -> None:
    assert Objective("x").loss({"x": value}) == smaller
    assert Objective("x", smaller_is_better=False).loss({"x": value}) == larger

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.config import (
    Categorical,
    Const,
    Double,
    ExploreFunction,
    Int,
    Length,
    Log,
    Pbt,
    ReplaceFunction,
)
from det_driver.search import Close, Create, Exit, RandomState, Searcher, Shutdown, Train, make
from det_driver.search._pbt import explore

SPACE = {
    "cat": Categorical(vals=(0, 1, 2, 3)),
    "const": Const(val="val"),
    "double": Double(minval=0, maxval=100),
    "nested": {"int": Int(minval=0, maxval=100)},
    "zlog": Log(minval=-4, maxval=-2),
}
SAMPLE = {"cat": 3, "const": "val", "double": 50.0, "nested": {"int": 50}, "zlog": 0.001}


def search(
    population: int, rounds: int, length: int, *, truncate: float = 0.5, smaller: bool = False
) -> Searcher:
    config = Pbt(
        metric="loss",
        smaller_is_better=smaller,
        population_size=population,
        num_rounds=rounds,
        length_per_round=Length("batches", length),
        replace_function=ReplaceFunction(truncate_fraction=truncate),
        explore_function=ExploreFunction(),
    )
    return make(config, SPACE, 0)


@pytest.mark.parametrize(
    ("settings", "metric", "expected"),
    [
        ((2, 2, 200), float, [1, 2, 1]),
        ((2, 3, 1700), lambda trial: float(-trial if trial % 2 else trial), [1, 2, 1, 2]),
        ((4, 8, 500), float, [1, 1, *[2] * 14, 1, 1]),
    ],
)
def test_the_best_go_on_and_are_copied(
    train, settings: tuple[int, int, int], metric: Callable[[int], float], expected: list[int]
) -> None:
    """In the second case the trial that was best loses the last round against its own copy."""
    reports, over = train(search(*settings), metric)
    rounds = [len(lengths) for lengths in reports.values()]
    assert sorted(rounds) == sorted(expected)
    assert sum(rounds) == settings[0] * settings[1]
    for lengths in reports.values():
        assert lengths == [settings[2] * (i + 1) for i in range(len(lengths))]
    assert over == Shutdown()


def test_the_first_stay_when_they_are_the_best(train) -> None:
    reports, _ = train(search(4, 8, 500, smaller=True))
    assert [len(lengths) for lengths in reports.values()] == [8, 8, *[1] * 16]


def test_nobody_leaves_without_truncation(train) -> None:
    reports, _ = train(search(3, 4, 400, truncate=0))
    assert reports == {trial: [400, 800, 1200, 1600] for trial in range(3)}


def test_generations_follow_the_results(train) -> None:
    metric = [0.5, 0.6, 0.1, 0.2, 0.3]
    reports, _ = train(search(2, 4, 200, smaller=True), lambda trial: metric[trial])
    assert [len(lengths) for lengths in reports.values()] == [2, 1, 3, 1, 1]


def test_a_copy_starts_from_the_checkpoint_of_the_best() -> None:
    searcher = search(2, 2, 10)
    assert all(op.source is None for op in searcher.start() if isinstance(op, Create))
    assert searcher.validated(0, 10, {"loss": 0}) == []
    close, create, train_copy, train_best = searcher.validated(1, 10, {"loss": 1})
    assert (close, create.trial, create.source) == (Close(0), 2, 1)
    assert (train_copy, train_best) == (Train(2, 10), Train(1, 20))


def test_a_trial_that_fails_leaves_its_place_to_a_copy() -> None:
    searcher = search(2, 4, 10, smaller=True)
    searcher.start()
    searcher.validated(0, 10, {"loss": 0.5})
    create, _, go_on = searcher.exited(1, Exit.INVALID_HP)
    assert (create.source, go_on) == (0, Train(0, 20))


def test_failed_trials_outside_truncation_do_not_block_the_round() -> None:
    searcher = search(3, 3, 10, truncate=0.34)
    searcher.start()
    searcher.exited(0, Exit.ERRORED)
    searcher.exited(1, Exit.ERRORED)
    create, *trains = searcher.validated(2, 10, {"loss": 0})
    assert create.source == 2
    assert trains == [Train(3, 10), Train(2, 20)]
    searcher.validated(2, 20, {"loss": 0})
    assert searcher.validated(3, 10, {"loss": 1})[0].source == 3


def test_shrunken_population_is_replaced_by_copies_of_all() -> None:
    """It shrinks where one that failed was among the best.

    At most as many stay as are left when the worst have gone.
    """
    searcher = search(6, 9, 10, smaller=True)
    searcher.start()
    for trial in range(1, 6):
        searcher.exited(trial, Exit.ERRORED)
    searcher.validated(0, 10, {"loss": 0})  # copied once; it stays, as do two that failed
    searcher.validated(0, 20, {"loss": 0})
    _, *operations = searcher.validated(6, 10, {"loss": 1})
    assert [op.source for op in operations if isinstance(op, Create)] == [0, 6]
    searcher.exited(0, Exit.ERRORED)
    searcher.validated(7, 10, {"loss": 0})
    operations = searcher.validated(8, 10, {"loss": 1})
    assert [op for op in operations if not isinstance(op, Create)] == [
        Close(7),
        Close(8),
        Train(9, 10),
        Train(10, 10),
    ]
    searcher.validated(9, 10, {"loss": 0})
    operations = searcher.validated(10, 10, {"loss": 1})
    assert [op for op in operations if not isinstance(op, Create)] == [
        *(Close(9), Close(10)),
        *(Train(11, 10), Train(12, 10)),
    ]
    assert searcher.state()["method"]["gone"] == []  # of those that are no members nothing is kept


def test_equal_results_go_by_age() -> None:
    searcher = search(4, 2, 10, truncate=0.25)
    searcher.start()
    for trial in (3, 1, 0):
        searcher.validated(trial, 10, {"loss": 1})
    close, create, *_ = searcher.validated(2, 10, {"loss": 1})
    assert (close, create.source) == (Close(3), 0)


def numpys_exploration(
    rng: np.random.RandomState, resample: float, factor: float
) -> dict[str, Any]:
    def one(old: Any, draw: Callable[[], Any], change: Callable[[float, bool], Any]) -> Any:
        if rng.random_sample() < resample:
            return draw()
        decrease = rng.random_sample() < 0.5
        return change(
            old * (1 - factor if decrease else 1 + factor) if not isinstance(old, str) else 0,
            decrease,
        )

    def rounded(x: float, down: bool) -> int:
        return int(min(max(np.floor(x) if down else np.ceil(x), 0), 100))

    return {
        "cat": one(3, lambda: rng.randint(0, 4), lambda x, d: 3),
        "const": one("val", lambda: "val", lambda x, d: "val"),
        "double": one(50.0, lambda: rng.uniform(0, 100), lambda x, d: min(max(x, 0.0), 100.0)),
        "nested": {"int": one(50, lambda: rng.randint(0, 101), rounded)},
        "zlog": one(
            0.001, lambda: 10 ** rng.uniform(-4, -2), lambda x, d: min(max(x, 10**-4.0), 10**-2.0)
        ),
    }


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 1))
def test_exploration_draws_as_determined_does(seed: int, resample: float, factor: float) -> None:
    explored = explore(SPACE, SAMPLE, RandomState(seed), resample, factor)
    assert explored == numpys_exploration(np.random.RandomState(seed), resample, factor)


@given(st.integers(0, 99))
def test_explore_without_resampling_or_perturbing_is_identity(seed: int) -> None:
    assert explore(SPACE, SAMPLE, RandomState(seed), 0, 0) == SAMPLE


@given(st.integers(0, 99))
def test_perturbing_changes_numbers_only(seed: int) -> None:
    explored = explore(SPACE, SAMPLE, RandomState(seed), 0, 0.5)
    assert (explored["cat"], explored["const"]) == (3, "val")
    assert explored["double"] in (25, 75)
    assert explored["nested"]["int"] in (25, 75)
    assert explored["zlog"] in (0.0005, 0.0015)


def test_a_copy_gets_what_exploration_draws_before_its_seed() -> None:
    """And the next copy's exploration comes after that seed."""
    searcher, rng = search(4, 2, 10), np.random.RandomState(0)
    firsts = [op for op in searcher.start() if isinstance(op, Create)]
    for _ in firsts:
        sample = (rng.randint(0, 4), rng.uniform(0, 100), rng.randint(0, 101), rng.uniform(-4, -2))
        rng.bytes(16)
        rng.randint(0, 2**31)
    assert firsts[-1].hparams["double"] == sample[1]
    for trial in (0, 1, 2):
        searcher.validated(trial, 10, {"loss": trial})
    creates = [op for op in searcher.validated(3, 10, {"loss": 3}) if isinstance(op, Create)]
    assert [create.source for create in creates] == [3, 2]
    ours = RandomState(0)
    state = rng.get_state()
    ours.restore({"words": [int(word) for word in state[1]], "position": int(state[2])})
    for create in creates:
        assert create.hparams == explore(SPACE, firsts[create.source].hparams, ours, 0.2, 0.2)
        ours.skip_words(4)
        assert create.seed == ours.below(2**31)


def test_progress_counts_rounds() -> None:
    searcher = search(2, 4, 10)
    assert searcher.progress({}) == 0
    searcher.start()
    searcher.validated(0, 10, {"loss": 0})
    assert searcher.progress({}) == 0.125
    searcher.validated(1, 10, {"loss": 1})
    assert searcher.progress({}) == 0.25


def test_progress_is_1_after_the_last_round_while_trials_end() -> None:
    searcher = search(1, 1, 10)
    searcher.start()
    searcher.validated(0, 10, {"loss": 0})
    assert searcher.progress({}) == 1

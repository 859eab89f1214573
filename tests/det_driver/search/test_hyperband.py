from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.config import Double, Hyperband, Length
from det_driver.search import Close, Exit, Searcher, Shutdown, Train, make
from det_driver.search._hyperband import hyperband_brackets


def search(max_length: int, divisor: float = 3) -> Searcher:
    config = Hyperband(metric="loss", max_length=Length("epochs", max_length), divisor=divisor)
    return make(config, {"lr": Double(minval=0, maxval=1)}, 0)


def shape(max_length: int, divisor: float) -> list[list[tuple[int, int]]]:
    return [
        [(rung.trials, rung.length) for rung in bracket]
        for bracket in hyperband_brackets(max_length, divisor)
    ]


def test_the_brackets_are_those_of_the_paper() -> None:
    """Li et al. 2018, algorithm 1 with R = 81 and eta = 3."""
    assert shape(81, 3) == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize(
    ("max_length", "divisor", "expected"),
    [
        (1, 3, [[(1, 1)]]),
        (2, 3, [[(1, 2)]]),
        (100, 10, [[(100, 1), (10, 10), (1, 100)], [(15, 10), (1, 100)], [(3, 100)]]),
        (4, 2, [[(4, 1), (2, 2), (1, 4)], [(3, 2), (1, 4)], [(3, 4)]]),
    ],
)  # fmt: skip
def test_brackets_halve_down_to_one(
    max_length: int, divisor: float, expected: list[list[tuple[int, int]]]
) -> None:
    assert shape(max_length, divisor) == expected


def test_an_exact_power_has_all_its_brackets() -> None:
    """Although log(1000) / log(10) is 2.9999999999999996."""
    assert [len(bracket) for bracket in shape(1000, 10)] == [4, 3, 2, 1]


@given(st.integers(1, 300), st.sampled_from([1.3, 2, 2.5, 3, 4]))
def test_lengths_grow_and_trials_shrink(max_length: int, divisor: float) -> None:
    for bracket in shape(max_length, divisor):
        trials, lengths = zip(*bracket, strict=True)
        assert list(trials) == sorted(trials, reverse=True)
        assert list(lengths) == sorted(set(lengths))
        assert lengths[0] >= 1
        assert lengths[-1] == max_length


def test_all_of_it_is_trained(train) -> None:
    reports, over = train(search(9))
    assert Counter(map(tuple, reports.values())) == {
        (1,): 6, (1, 3): 2, (1, 3, 9): 1, (3,): 4, (3, 9): 1, (9,): 3,
    }  # fmt: skip
    assert all(len(reports[trial]) > 1 for trial in (0, 1, 2, 9))
    assert over == Shutdown()


def test_nothing_is_decided_before_the_last_of_a_rung() -> None:
    searcher = search(3)
    searcher.start()
    assert searcher.validated(0, 1, {"loss": 3}) == []
    assert searcher.validated(1, 1, {"loss": 1}) == []
    assert searcher.validated(2, 1, {"loss": float("nan")}) == [Close(0), Close(2), Train(1, 3)]
    assert searcher.validated(1, 2, {"loss": 0}) == []
    assert searcher.validated(1, 3, {"loss": 0}) == [Close(1)]


def test_a_trial_that_ends_early_drops_out() -> None:
    searcher = search(3)
    searcher.start()
    searcher.validated(0, 1, {"loss": 1})
    searcher.exited(0, Exit.CANCELED)
    searcher.validated(1, 1, {"loss": 2})
    assert searcher.exited(2, Exit.ERRORED) == [Train(1, 3)]
    assert searcher.exited(1, Exit.ERRORED) == []


def test_a_search_that_is_taken_up_again_knows_who_was_how_good() -> None:
    searcher, again = search(3), search(3)
    searcher.start()
    for trial in range(2):
        searcher.validated(trial, 1, {"loss": trial})
    again.restore(searcher.state())
    assert again.validated(2, 1, {"loss": 2}) == [Close(1), Close(2), Train(0, 3)]


def test_invalid_hyperparameters_are_replaced_in_the_first_rung() -> None:
    searcher = search(3)
    searcher.start()
    create, train = searcher.exited(1, Exit.INVALID_HP)
    assert (create.trial, train) == (5, Train(5, 1))
    for trial in (0, 2):
        assert searcher.validated(trial, 1, {"loss": 1}) == []
    assert searcher.validated(5, 1, {"loss": 0})[-1] == Train(5, 3)
    assert searcher.exited(5, Exit.INVALID_HP) == []


def test_progress_is_the_share_of_what_is_to_be_trained() -> None:
    searcher = search(3)
    searcher.start()
    assert searcher.progress({}) == 0
    for trial in range(3):
        searcher.validated(trial, 1, {"loss": trial})
    assert searcher.progress({}) == pytest.approx(3 / 5 / 2)
    searcher.validated(0, 3, {"loss": 0})
    assert searcher.progress({}) == pytest.approx(5 / 5 / 2)

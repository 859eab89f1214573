from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.config import Double, Length, Random, Single
from det_driver.search import Close, Create, Exit, Searcher, Shutdown, Train, make

SPACE = {"lr": Double(minval=0, maxval=1)}


def search(max_trials: int, at_once: int = 0, length: int | None = 10) -> Searcher:
    max_length = None if length is None else Length("epochs", length)
    config = Random(
        metric="loss", max_trials=max_trials, max_concurrent_trials=at_once, max_length=max_length
    )
    return make(config, SPACE, 0)


def created(operations: list[object]) -> list[int]:
    return [operation.trial for operation in operations if isinstance(operation, Create)]


@pytest.mark.parametrize(("max_trials", "at_once", "first"), [(5, 2, 2), (5, 9, 5), (5, 0, 5)])
def test_it_starts_as_many_trials_as_may_run_at_once(
    max_trials: int, at_once: int, first: int
) -> None:
    assert created(search(max_trials, at_once).start()) == list(range(first))


def test_a_trial_that_ends_makes_room_for_one_more() -> None:
    searcher = search(3, 1)
    searcher.start()
    assert searcher.validated(0, 9, {}) == []
    assert searcher.validated(0, 10, {}) == [Close(0)]
    assert created(searcher.exited(0, Exit.COMPLETED)) == [1]
    assert created(searcher.exited(1, Exit.ERRORED)) == [2]
    assert searcher.exited(2, Exit.USER_STOPPED) == [Shutdown()]


@given(st.integers(1, 30), st.integers(0, 30))
def test_the_budget_is_trained_exactly(train, max_trials: int, at_once: int) -> None:
    reports, over = train(search(max_trials, at_once))
    assert reports == {trial: [10] for trial in range(max_trials)}
    assert over == Shutdown()


def test_invalid_hyperparameters_are_replaced_and_do_not_count(train) -> None:
    reports, _ = train(search(4, 2), exits={1: Exit.INVALID_HP, 2: Exit.INVALID_HP})
    assert reports == {0: [10], 1: [], 2: [], 3: [10], 4: [10], 5: [10]}


def test_restored_search_knows_how_many_trials_were_invalid() -> None:
    searcher, again = search(2, 1), search(2, 1)
    searcher.start()
    searcher.exited(0, Exit.INVALID_HP)
    again.restore(searcher.state())
    assert created(again.exited(1, Exit.COMPLETED)) == [2]


def test_invalid_hyperparameters_of_a_closed_trial_add_no_trial() -> None:
    searcher = search(1)
    searcher.start()
    searcher.validated(0, 10, {})
    assert searcher.exited(0, Exit.INVALID_HP) == [Shutdown()]


def test_a_trial_without_length_ends_by_itself() -> None:
    searcher = search(1, length=None)
    assert searcher.start()[1] == Train(0, None)
    assert searcher.validated(0, 10**9, {}) == []
    assert searcher.exited(0, Exit.COMPLETED) == [Shutdown()]


def test_progress_is_that_of_the_trials() -> None:
    searcher = search(4, 2)
    searcher.start()
    assert searcher.progress({0: 0.5, 1: 0.25}) == 0.1875
    searcher.exited(0, Exit.COMPLETED)
    assert searcher.progress({0: 0.5, 1: 0.25}) == 0.3125
    searcher.exited(1, Exit.INVALID_HP)
    assert searcher.progress({}) == 0.25


def test_a_single_trial_is_not_replaced(train) -> None:
    config = Single(metric="loss", max_length=Length("epochs", 10))
    assert train(make(config, SPACE, 0)) == ({0: [10]}, Shutdown())
    assert train(make(config, SPACE, 0), exits={0: Exit.INVALID_HP}) == ({0: []}, Shutdown())


def test_a_trial_that_was_never_created_is_an_error() -> None:
    searcher = search(2)
    searcher.start()
    for trial in (2, -1):
        with pytest.raises(
            ValueError, match=f"trial {trial} was never created; the trials are 0 to 1"
        ):
            searcher.validated(trial, 10, {})

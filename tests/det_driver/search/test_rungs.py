from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.config import AdaptiveAsha, Length
from det_driver.search import adaptive_brackets
from det_driver.search._rungs import (
    Standings,
    bracket_max_concurrent_trials,
    bracket_max_trials,
    bracket_rungs,
    initial_trials,
    rung_lengths,
    useful_rungs,
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3, 3, 9), [1, 3, 9]),
        ((4, 2, 10), [1, 2, 5, 10]),
        ((1, 3, 9), [9]),
        ((3, 3, 900), [100, 300, 900]),
        ((5, 4, 10), [1, 1, 1, 2, 10]),
        ((800, 4, 10), [*[1] * 798, 2, 10]),
    ],
)
def test_rungs_have_these_lengths(arguments: tuple[int, float, int], expected: list[int]) -> None:
    assert rung_lengths(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((20, 3, [3, 2, 1]), [12, 5, 3]),
        ((50, 3, [4, 3]), [35, 15]),
        ((50, 4, [3, 2]), [37, 13]),
        ((100, 4, [4, 3, 2]), [70, 22, 8]),
        ((2, 4, [5, 4, 3]), [1, 1]),
        ((3, 4, [9, 2, 1]), [1, 1, 1]),
        ((10, 4, [900, 2]), [9, 1]),
        ((4, 1.01, [6, 1]), [1, 3]),
        ((3, 1.01, [8, 6, 1]), [1, 1, 1]),
    ],
)
def test_trials_are_shared_among_brackets(
    arguments: tuple[int, float, list[int]], expected: list[int]
) -> None:
    assert bracket_max_trials(*arguments) == expected


@given(
    st.integers(1, 1000),
    st.floats(1.01, 10),
    st.lists(st.integers(1, 12), min_size=1, max_size=9).map(lambda r: sorted(r)[::-1]),
)
def test_every_trial_is_in_one_bracket(max_trials: int, divisor: float, rungs: list[int]) -> None:
    shares = bracket_max_trials(max_trials, divisor, rungs)
    assert sum(shares) == max_trials
    assert min(shares) >= 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 3, [9, 3, 1]), [3, 3, 3]),
        ((11, 3, [9, 3, 1]), [4, 4, 3]),
        ((0, 4, [40, 10]), [10, 10]),
        ((1, 4, [40, 10]), [1, 1]),
    ],
)
def test_concurrency_is_shared_among_brackets(
    arguments: tuple[int, float, list[int]], expected: list[int]
) -> None:
    assert bracket_max_concurrent_trials(*arguments) == expected


@pytest.mark.parametrize(
    ("mode", "max_rungs", "expected"),
    [
        ("conservative", 3, [3, 2, 1]),
        ("standard", 3, [3, 2]),
        ("standard", 4, [4, 3, 2]),
        ("standard", 1, [1]),
        ("aggressive", 3, [3]),
    ],
)
def test_a_mode_has_these_brackets(mode: str, max_rungs: int, expected: list[int]) -> None:
    assert bracket_rungs(mode, max_rungs) == expected


def test_rungs_are_as_many_as_the_search_has_room_for() -> None:
    assert useful_rungs(5, 3, 900, 10) == 3
    assert useful_rungs(5, 4, 100, 10) == 2
    assert useful_rungs(5, 4, 3, 1000) == 1
    assert useful_rungs(2, 4, 10**6, 10**6) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3, 10, 4, 2), 3),
        ((30, 10, 4, 2), 10),
        ((0, 100, 4, 3), 16),
        ((0, 10, 4, 3), 10),
        ((0, 10, 4, 900), 10),
    ],
)
def test_a_bracket_starts_with_enough_trials(
    arguments: tuple[int, int, float, int], expected: int
) -> None:
    assert initial_trials(*arguments) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"max_length": Length("batches", 100), "max_concurrent_trials": 2},
            [(2, 7, 1), (1, 3, 1)],
        ),
        (
            {
                "mode": "conservative",
                "max_length": Length("epochs", 1000),
                "divisor": 3,
                "max_concurrent_trials": 5,
            },
            [(3, 7, 2), (2, 2, 2), (1, 1, 1)],
        ),
        (
            {"bracket_rungs": (1, 3), "max_time": 9, "time_metric": "t", "divisor": 3},
            [(3, 8, 8), (1, 2, 8)],
        ),
    ],
)
def test_adaptive_asha_has_these_brackets(
    settings: dict[str, object], expected: list[tuple[int, int, int]]
) -> None:
    """Of each bracket: rungs, trials, trials at a time."""
    assert adaptive_brackets(AdaptiveAsha(metric="loss", max_trials=10, **settings)) == expected


def test_adaptive_asha_has_no_more_brackets_than_trials() -> None:
    config = AdaptiveAsha(
        metric="loss", max_trials=1, bracket_rungs=(1, 3), max_length=Length("batches", 100)
    )
    assert [(rungs, trials) for rungs, trials, _ in adaptive_brackets(config)] == [(3, 1)]


def test_bracket_is_done_when_its_trials_have_ended() -> None:
    """Those that are invalid are replaced, and do not count."""
    standings = Standings(2, 2)
    for trial in range(2):
        standings.rungs[0].insert(1.0, trial, behind_ties=True)
    standings.forget(7, [])
    parts = []
    for _ in range(3):
        standings.finished += 1
        parts.append(standings.progress([1, 10], 2))
    assert parts == [2 / 11, 2 / 11, 1.0]

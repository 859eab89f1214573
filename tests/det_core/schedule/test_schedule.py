"""When things fall due."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core import At, Every, Schedule
from det_core.train.schedule import NEVER


def test_every_is_due_at_its_multiples() -> None:
    assert [n for n in range(12) if Every(4).due(n)] == [4, 8]


def test_every_nothing_is_never_due() -> None:
    assert not any(Every(0).due(n) for n in range(12))
    assert Every(0).after(7) == NEVER


def test_at_takes_positions_in_any_order_and_more_than_once() -> None:
    assert [n for n in range(12) if At([7, 3, 7]).due(n)] == [3, 7]
    assert [At([7, 3, 7]).after(n) for n in (0, 3, 7)] == [3, 7, NEVER]


@pytest.mark.parametrize("positions", [range(30, 0, -10), {10, 20, 30}, iter([20, 10, 30])])
def test_at_takes_positions_in_whatever_they_come(positions: Any) -> None:
    period = At(positions)
    assert [n for n in range(40) if period.due(n)] == [10, 20, 30]
    assert [period.after(n) for n in (0, 10, 20, 30)] == [10, 20, 30, NEVER]


@pytest.mark.parametrize("positions", [range(10, 2**40, 10), range(2**40, 9, -10)])
def test_at_does_not_unroll_a_range(positions: range) -> None:
    """However long it is, and whichever way it runs."""
    last = 2**40 // 10 * 10 - (positions.step > 0) * 0
    period = At(positions)
    assert period.after(0) in {10, 16}
    assert period.due(period.after(0))
    assert period.after(last + 100) == NEVER


class Prime:
    """A container that can only be asked."""

    def __contains__(self, n: object) -> bool:
        return isinstance(n, int) and n > 1 and all(n % k for k in range(2, n))


def test_at_asks_what_cannot_be_iterated() -> None:
    period = At(Prime())
    assert [n for n in range(12) if period.due(n)] == [2, 3, 5, 7, 11]
    assert [period.after(n) for n in (1, 2, 3, 7)] == [2, 3, 5, 11]


class Nothing:
    def __contains__(self, n: object) -> bool:
        return False


def test_at_asks_no_further_than_its_horizon() -> None:
    """There a run looks again; nothing is due."""
    period = At(Nothing(), horizon=10)
    assert period.after(5) == 15
    assert not period.due(15)


def test_at_shows_its_positions() -> None:
    assert repr(At([1, 2])) == "At([1, 2])"


PERIODS: Any = st.one_of(
    st.integers(0, 9).map(Every),
    st.sets(st.integers(0, 50)).map(At),
    st.integers(1, 9).map(lambda n: At(range(n, 60, n))),
)


@given(PERIODS, st.integers(0, 60))
def test_after_is_the_first_position_that_is_due(period: Every | At, done: int) -> None:
    expected = next((n for n in range(done + 1, 80) if period.due(n)), NEVER)
    assert period.after(done) == expected


@given(PERIODS, PERIODS, PERIODS, st.integers(0, 60))
def test_a_schedule_is_due_when_any_of_its_parts_is(
    report: Any, validate: Any, checkpoint: Any, done: int
) -> None:
    schedule = Schedule(report=report, validate=validate, checkpoint=checkpoint)
    assert schedule.after(done) == min(part.after(done) for part in (report, validate, checkpoint))
    assert schedule.due(done) == any(part.due(done) for part in (report, validate, checkpoint))


def test_a_report_is_due_every_hundred_batches_by_default() -> None:
    assert (Schedule().after(0), Schedule().after(100)) == (100, 200)

"""Lengths and periods of `Trainer.fit`."""

from __future__ import annotations

import pytest

from det_core import DetError
from det_torch import Batch, Epoch


def due(unit, per_epoch, until):
    period = unit.period(per_epoch)
    return [n for n in range(1, until + 1) if period.due(n)]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (Batch(4), [4, 8, 12]),
        (Batch(0), list(range(1, 13))),
        (Batch([3, 7]), [3, 7]),
        (Batch(range(5, 100, 5)), [5, 10]),
        (Epoch(1), [3, 6, 9, 12]),
        (Epoch(2), [6, 12]),
        (Epoch({1, 4}), [3, 12]),
    ],
)
def test_period_is_due_at_multiples_or_at_listed_positions(unit, expected):
    assert due(unit, 3, 12) == expected


class Even:
    """A container that can only be asked."""

    def __contains__(self, n):
        return n % 2 == 0


def test_a_container_may_be_one_that_can_only_be_asked():
    assert due(Batch(Even()), 3, 6) == [2, 4, 6]
    assert due(Epoch(Even()), 3, 12) == [6, 12]


def test_a_length_is_a_number():
    assert Batch(7).batches(None) == 7
    assert Epoch(2).batches(5) == 10
    with pytest.raises(
        TypeError, match=r"Batch\(\[1\]\) is no length; give a whole number of batches or epochs"
    ):
        Batch([1]).batches(None)


def test_epochs_need_data_that_has_a_length():
    with pytest.raises(
        DetError,
        match=r"Epoch\(2\) cannot be counted, as the training data has no length; give Batch\(n\)",
    ):
        Epoch(2).batches(None)


@pytest.mark.parametrize("value", [True, 1.5, None])
def test_other_values_are_refused(value):
    with pytest.raises(TypeError, match=r"give a whole number or a container of them"):
        Batch(value)


def test_should_stop_answers_as_it_always_did():
    assert [n for n in range(7) if Batch(3).should_stop(n)] == [3, 6]
    assert all(Batch(0).should_stop(n) for n in range(3))
    assert [n for n in range(7) if Batch([0, 5]).should_stop(n)] == [0, 5]


def test_units_are_values():
    assert Batch(3) == Batch(3)
    assert Batch(3) != Epoch(3)
    assert len({Batch(3), Batch(3), Epoch(3)}) == 2
    assert repr(Epoch([1, 2])) == "Epoch([1, 2])"

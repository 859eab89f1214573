"""Batches depend on the seed and the position alone."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from det_jax import ArrayData
from det_jax.data import Batches

from det_core import TrialError


def batches(
    done: int = 0, count: int = 6, *, rank: int = 0, ranks: int = 1, shuffle: bool = True
) -> list[list[int]]:
    data = ArrayData({"x": np.arange(10)}, shuffle=shuffle)
    made = Batches(data=data, size=4, seed=7, rank=rank, ranks=ranks)
    return [batch["x"].tolist() for batch in islice(made.after(done), count)]


def test_from_any_position_on_they_are_those_of_a_run_that_was_not_interrupted() -> None:
    assert all(batches(done, 6 - done) == batches()[done:] for done in range(6))


def test_an_epoch_has_each_record_at_most_once_and_the_next_another_order() -> None:
    first, second, third, fourth = batches(count=4)
    assert len({*first, *second}) == len({*third, *fourth}) == 8
    assert (first, second) != (third, fourth)


def test_the_parts_of_the_ranks_make_up_the_batch_of_one() -> None:
    parts = [batches(rank=rank, ranks=2) for rank in range(2)]
    assert [left + right for left, right in zip(*parts, strict=True)] == batches()


def test_records_that_are_not_shuffled_come_as_they_are() -> None:
    assert batches(count=3, shuffle=False) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(TrialError, match=r"have the lengths \[2, 3\]; give all of them one length"):
        ArrayData((np.zeros(2), np.zeros(3)))


def test_too_little_data_is_refused() -> None:
    data: Any = ArrayData(np.zeros(3))
    with pytest.raises(TrialError, match="has 3 records, fewer than global_batch_size, which is 4"):
        Batches(data=data, size=4, seed=0, rank=0, ranks=1)

"""What each of several ranks reads: its share, of which nothing is left out for ever."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from det_core.data import DatasetCache
from det_keras.data import CachedDataset, Feed, Reading, Share, make_feed
from det_keras.versions import keras


class Numbers(keras.utils.Sequence):
    """Five batches, each of its own number."""

    length = 5

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.full((1, 1), float(index)), np.zeros((1, 1))


class Mine(Numbers):
    """The batches of one rank, as the user deals them."""

    det_sharded = True


def feeds(data: Any, size: int, *, shuffle: bool = False) -> list[Feed]:
    readings = [
        Reading(batch_size=1, seed=3, shuffle=shuffle, rank=rank, size=size) for rank in range(size)
    ]
    return [
        make_feed(data, "data", reading, training=True, wrapped=lambda _: True)
        for reading in readings
    ]


def numbers(batches: Any, count: int = -1) -> list[int]:
    return [int(x.item()) for x, *_ in batches.take(count).as_numpy_iterator()]


def arrays() -> Any:
    return np.arange(5.0).reshape(-1, 1), np.zeros((5, 1))


DATA = {"a sequence": Numbers, "arrays": arrays}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
@pytest.mark.parametrize("size", [2, 3])
def test_fixed_order_starts_the_next_epoch_with_the_remainder(make: Any, size: int) -> None:
    """So that in as many epochs as there are batches each is trained as often as any other."""
    ranks = feeds(make(), size)
    epoch = 5 // size
    assert [feed.batches_per_epoch for feed in ranks] == [epoch] * size
    read = [numbers(feed.training(0), epoch * 5) for feed in ranks]
    in_order = [number for step in zip(*read, strict=True) for number in step]
    assert in_order == [place % 5 for place in range(epoch * 5 * size)]
    assert set(Counter(in_order).values()) == {epoch * size}
    for feed, whole in zip(ranks, read, strict=True):
        assert numbers(feed.training(3), 4) == (whole * 2)[3:7]


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
def test_shuffled_epoch_omits_the_records_drawn_last(make: Any) -> None:
    ranks = feeds(make(), 2, shuffle=True)
    read = [numbers(feed.training(0), 2 * 20) for feed in ranks]
    epochs = [[*read[0][at : at + 2], *read[1][at : at + 2]] for at in range(0, 40, 2)]
    assert all(len(set(epoch)) == 4 for epoch in epochs)
    assert {number for epoch in epochs for number in set(range(5)) - set(epoch)} == set(range(5))


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
def test_each_batch_is_validated_once(make: Any) -> None:
    read = [numbers(feed.validation()) for feed in feeds(make(), 2)]
    assert sorted(number for rank in read for number in rank) == list(range(5))


def test_a_sequence_that_says_that_it_is_sharded_is_read_whole() -> None:
    for feed in feeds(Mine(), 2):
        assert feed.batches_per_epoch == 5
        assert numbers(feed.training(0), 6) == [0, 1, 2, 3, 4, 0]
        assert numbers(feed.validation()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("shuffle", [False, True])
def test_cache_without_reshuffle_omits_no_record_forever(tmp_path: Path, shuffle: bool) -> None:
    cached = CachedDataset.open(
        DatasetCache(tmp_path), "numbers", "1", lambda: tf.data.Dataset.range(5)
    )
    shares = [Share(seed=3, rank=rank, size=2, batch=1, first=0) for rank in range(2)]
    endless = [cached.endless(share, shuffle=shuffle, reshuffle=False) for share in shares]
    read = [int(n) for each in endless for n in each.take(10).as_numpy_iterator()]
    assert set(Counter(read).values()) == {4}

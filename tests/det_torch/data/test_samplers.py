"""The samplers that are public, and loaders built from them by hand."""

from __future__ import annotations

from itertools import islice

import pytest
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from det_torch import samplers
from det_torch.data import TrainingStream


def test_all_samplers_are_exported():
    assert samplers.__all__ == sorted(samplers.__all__)
    assert len(samplers.__all__) == 8


def test_repeating_is_endless_and_has_the_length_of_one_pass():
    repeated = samplers.RepeatSampler([1, 2, 3])
    assert len(repeated) == 3
    assert list(islice(repeated, 7)) == [1, 2, 3, 1, 2, 3, 1]
    assert list(islice(samplers.RepeatBatchSampler([[1], [2]]), 3)) == [[1], [2], [1]]


def test_repeating_nothing_ends():
    assert list(samplers.RepeatSampler([])) == []


@pytest.mark.parametrize(("rank", "items"), [(0, [0, 3, 6]), (1, [1, 4]), (2, [2, 5])])
def test_sharding_takes_every_nth_item(rank, items):
    shard = samplers.DistributedSampler(range(7), 3, rank)
    assert list(shard) == items
    assert len(shard) == len(items)


def test_sharding_a_repeated_sampler_rotates_what_each_rank_gets():
    shard = samplers.DistributedBatchSampler(samplers.RepeatBatchSampler([[0], [1], [2]]), 2, 1)
    assert list(islice(shard, 4)) == [[1], [0], [2], [1]]
    assert len(shard) == 1


def test_skipping_drops_the_first_items_and_keeps_the_length():
    skipped = samplers.SkipSampler(range(5), 3)
    assert list(skipped) == [3, 4]
    assert len(skipped) == 5
    assert list(samplers.SkipBatchSampler([[0], [1]], 1)) == [[1]]


def test_a_reproducible_shuffle_depends_on_the_seed_and_advances():
    first, again = (samplers.ReproducibleShuffleSampler(range(20), seed=7) for _ in range(2))
    epochs = [list(first), list(first)]
    assert epochs == [list(again), list(again)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[1]) == list(range(20))
    batches = samplers.ReproducibleShuffleBatchSampler([[0], [1], [2]], seed=1)
    assert sorted(batches) == [[0], [1], [2]]
    assert len(batches) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: samplers.DistributedSampler(range(3), 0, 0),
            "num_workers is 0; give the number of ranks, 1 or more",
        ),
        (
            lambda: samplers.DistributedBatchSampler([[1]], 2, 2),
            "rank is 2; with num_workers=2 it must be from 0 to 1",
        ),
        (lambda: samplers.SkipSampler(range(3), -1), "skip is -1; give 0 or more"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message


def by_hand(skip, rank, size):
    """Build a loader as Determined told the users of torch's loaders to."""
    batches = BatchSampler(
        samplers.ReproducibleShuffleSampler(SequentialSampler(range(11)), seed=3), 2, False
    )
    batches = samplers.RepeatBatchSampler(batches)
    batches = samplers.DistributedBatchSampler(batches, size, rank)
    return TorchDataLoader(range(11), batch_sampler=samplers.SkipBatchSampler(batches, skip))


@pytest.mark.parametrize("done", [0, 4, 17])
def test_a_loader_that_skips_and_shards_itself_is_left_alone(done):
    whole = list(islice(by_hand(0, 1, 2), 30))
    stream = TrainingStream(by_hand(done, 1, 2), seed=0, rank=1, size=2)
    got = list(islice(stream.batches(done), 30 - done))
    assert [b.tolist() for b in got] == [b.tolist() for b in whole[done:]]
    assert stream.exact


def test_loader_that_skips_by_itself_resumes_as_the_same_sampler():
    before = TrainingStream(by_hand(0, 0, 1), seed=0, rank=0, size=1)
    next(before.batches(0))
    after = TrainingStream(by_hand(4, 0, 1), seed=0, rank=0, size=1)
    after.restore(before.state(4))
    next(after.batches(4))
    assert after.exact

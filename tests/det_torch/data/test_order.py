"""The order of the data, without reading any."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from det_core.errors import TrialError
from det_torch.data import DataLoader, TrainingStream


class Indices(torch.utils.data.Dataset):
    """A dataset whose records are their own indices, so that a batch is an index list."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        assert 0 <= index < self.n
        return index


def same(batch):
    return batch


def stream(loader, done=0, *, take, seed=0, rank=0, size=1):
    return list(islice(TrainingStream(loader, seed=seed, rank=rank, size=size).batches(done), take))


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**31),
    size=st.integers(1, 5),
    data=st.data(),
)
def test_the_stream_from_any_batch_is_the_tail_of_the_whole(
    n, batch_size, drop_last, shuffle, seed, size, data
):
    if drop_last:
        batch_size = min(batch_size, n)
    rank, done = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 60))
    loader = DataLoader(
        Indices(n), batch_size, shuffle=shuffle, drop_last=drop_last, collate_fn=same
    )
    whole = stream(loader, take=done + 10, seed=seed, rank=rank, size=size)
    assert stream(loader, done, take=10, seed=seed, rank=rank, size=size) == whole[done:]


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_every_epoch_is_a_permutation_of_the_records(n, batch_size, drop_last, shuffle, seed):
    if drop_last:
        batch_size = min(batch_size, n)
    loader = DataLoader(
        Indices(n), batch_size, shuffle=shuffle, drop_last=drop_last, collate_fn=same
    )
    length = len(loader)
    batches = stream(loader, take=3 * length, seed=seed)
    for epoch in range(3):
        records = [i for batch in batches[epoch * length : (epoch + 1) * length] for i in batch]
        assert len(set(records)) == len(records) == (n - n % batch_size if drop_last else n)
        assert shuffle or records == list(range(len(records)))


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 30),
    batch_size=st.integers(1, 7),
    size=st.integers(1, 6),
    shuffle=st.booleans(),
)
def test_batch_i_goes_to_rank_i_modulo_size(n, batch_size, size, shuffle):
    loader = DataLoader(Indices(n), batch_size, shuffle=shuffle, collate_fn=same)
    whole = stream(loader, take=12 * size)
    for rank in range(size):
        assert stream(loader, take=12, rank=rank, size=size) == whole[rank::size]


def test_odd_tail_gives_each_rank_other_batches_in_every_epoch():
    loader = DataLoader(Indices(3), 1, collate_fn=same)
    assert stream(loader, take=3, rank=0, size=2) == [[0], [2], [1]]
    assert stream(loader, take=3, rank=1, size=2) == [[1], [0], [2]]


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 30),
    batch_size=st.integers(1, 7),
    size=st.integers(1, 6),
    rank=st.integers(0, 5),
)
def test_det_deals_as_the_chain_of_samplers_does(n, batch_size, size, rank):
    rank %= size
    loader = DataLoader(Indices(n), batch_size, collate_fn=same)
    chain = loader.get_data_loader(repeat=True, skip=5, num_replicas=size, rank=rank)
    assert list(islice(chain, 9)) == stream(loader, 5, take=9, rank=rank, size=size)
    chief = loader.get_data_loader(repeat=True, num_replicas=size, rank=0)
    assert TrainingStream(loader, seed=0, rank=rank, size=size).batches_per_epoch == len(chief)


def test_two_epochs_are_shuffled_differently_and_two_seeds_too():
    loader = DataLoader(Indices(50), 50, shuffle=True, collate_fn=same)
    first, second = stream(loader, take=2)
    assert first != second
    assert stream(loader, take=1, seed=1)[0] != first


def test_a_position_far_away_is_reached_without_replay():
    loader = DataLoader(Indices(10), 3, shuffle=True, collate_fn=same)
    assert len(stream(loader, 10**15, take=1)[0]) == 3


def test_torchs_loader_is_read_in_the_same_order_as_ours():
    ours = DataLoader(Indices(20), 3, shuffle=True, collate_fn=same)
    theirs = TorchDataLoader(Indices(20), 3, shuffle=True, collate_fn=same)
    assert stream(ours, 4, take=20, seed=5) == stream(theirs, 4, take=20, seed=5)


def test_sampling_with_replacement_and_more_samples_than_records():
    drawn = RandomSampler(Indices(5), replacement=True, num_samples=12)
    whole = stream(TorchDataLoader(Indices(5), 4, sampler=drawn, collate_fn=same), take=9)
    assert [len(batch) for batch in whole] == [4] * 9
    assert (
        stream(TorchDataLoader(Indices(5), 4, sampler=drawn, collate_fn=same), 4, take=5)
        == whole[4:]
    )
    longer = TorchDataLoader(
        Indices(5), 12, sampler=RandomSampler(Indices(5), num_samples=12), collate_fn=same
    )
    (batch,) = stream(longer, take=1)
    assert sorted(batch[:5]) == sorted(batch[5:10]) == list(range(5))
    assert len(set(batch[10:])) == 2


def test_user_generator_shuffles_by_its_seed_not_its_state():
    def loader(seed, draws=0):
        generator = torch.Generator().manual_seed(seed)
        torch.rand(draws, generator=generator)
        return TorchDataLoader(Indices(30), 7, shuffle=True, generator=generator, collate_fn=same)

    assert stream(loader(1), take=9, seed=3) == stream(loader(1, draws=5), take=9, seed=4)
    assert stream(loader(1), take=9) != stream(loader(2), take=9)


def test_a_loader_without_batches_gives_single_records():
    loader = TorchDataLoader(Indices(4), batch_size=None, shuffle=True, collate_fn=same)
    whole = stream(loader, take=11)
    assert sorted(whole[:4]) == [0, 1, 2, 3]
    assert stream(loader, 6, take=5) == whole[6:]


class Buckets(Sampler):
    """Batches by a shuffle of the global generators, of varying number and size."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        records = list(range(self.n))
        random.shuffle(records)
        np.random.shuffle(records)
        while records:
            size = int(torch.randint(1, 4, ()))
            yield [records.pop() for _ in range(min(size, len(records)))]


def test_a_random_batch_sampler_of_the_users_is_replayed():
    loader = TorchDataLoader(Indices(100), batch_sampler=Buckets(100), collate_fn=same)
    torch.manual_seed(1)
    whole = stream(loader, take=400)
    torch.manual_seed(2)
    assert stream(loader, 150, take=250) == whole[150:]
    assert stream(loader, 50, take=50, rank=2, size=3) == whole[152:302:3]
    assert TrainingStream(loader, seed=0, rank=0, size=1).batches_per_epoch is None


def test_torchs_other_samplers_are_decided_by_the_seed():
    def loader():
        sampler = WeightedRandomSampler([1.0, 2.0, 3.0, 4.0], 10)
        return TorchDataLoader(Indices(4), 3, sampler=sampler, collate_fn=same)

    whole = stream(loader(), take=20)
    assert stream(loader(), 7, take=13) == whole[7:]
    assert stream(loader(), take=20, seed=1) != whole


class KeepsGenerator(Sampler):
    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        return iter(self.rng.permutation(self.n).tolist())

    def __len__(self):
        return self.n


def test_sampler_with_a_seeded_generator_is_replayed_exactly():
    def loader():
        return DataLoader(Indices(10), 3, sampler=KeepsGenerator(10, seed=4), collate_fn=same)

    whole = stream(loader(), take=20)
    assert stream(loader(), 13, take=7) == whole[13:]


def resumed(loader_before, loader_after):
    before = TrainingStream(loader_before, seed=0, rank=0, size=1)
    next(before.batches(0))
    after = TrainingStream(loader_after, seed=0, rank=0, size=1)
    after.restore(before.state(1))
    after.batches(1)
    return after


def test_unseeded_sampler_is_noticed_when_a_run_resumes():
    def loader(seed):
        return DataLoader(Indices(100), 10, sampler=KeepsGenerator(100, seed), collate_fn=same)

    after = resumed(loader(None), loader(None))
    assert not after.exact
    assert (
        after.warning
        == "the sampler of the training data began with other indices than in the run before, so"
        " that some records are repeated and some are missed; seed the generator that it keeps"
    )
    assert resumed(loader(1), loader(1)).exact


class Announced(Sampler):
    def __init__(self):
        self.epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch] * 3)

    def __len__(self):
        return 3


def test_samplers_are_told_the_epoch():
    loader = DataLoader(Indices(100), 2, sampler=Announced(), collate_fn=same)
    assert stream(loader, 1, take=4) == [[0], [1, 1], [1], [2, 2]]


class Endless(Sampler):
    def __iter__(self):
        i = 0
        while True:
            yield i % 7
            i += 1


def test_an_endless_sampler_is_one_endless_epoch():
    loader = TorchDataLoader(Indices(7), 2, sampler=Endless(), collate_fn=same)
    assert stream(loader, 199, take=2, rank=0, size=1) == [[398 % 7, 399 % 7], [400 % 7, 401 % 7]]
    assert TrainingStream(loader, seed=0, rank=0, size=1).batches_per_epoch is None


def test_a_sampler_is_drawn_at_most_64_batches_ahead():
    drawn = []

    class Counted(Endless):
        def __iter__(self):
            for index in super().__iter__():
                drawn.append(index)
                yield index

    batches = TrainingStream(
        TorchDataLoader(Indices(7), 1, sampler=Counted()), seed=0, rank=0, size=1
    ).batches(0)
    next(batches)
    assert len(drawn) == 64


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            DataLoader(Indices(0), 4, shuffle=True),
            (
                "the training data loader is empty: its Indices holds no records; give it at least"
                " one batch"
            ),
        ),
        (
            TorchDataLoader(Indices(3), 4, drop_last=True),
            (
                "the training data loader is empty: 3 records do not fill a batch of 4, and"
                " drop_last is set; give it at least one batch"
            ),
        ),
    ],
)
def test_an_empty_loader_is_refused_when_the_stream_is_made(loader, message):
    with pytest.raises(TrialError) as error:
        TrainingStream(loader, seed=0, rank=0, size=1)
    assert str(error.value) == message


def test_a_sampler_that_yields_nothing_is_refused():
    class Nothing(Sampler):
        def __iter__(self):
            return iter(())

    stream = TrainingStream(TorchDataLoader(Indices(3), sampler=Nothing()), seed=0, rank=0, size=1)
    with pytest.raises(TrialError) as error:
        stream.batches(0)
    assert (
        str(error.value)
        == "the training data loader is empty: its BatchSampler yields nothing in epoch 0; give it"
        " at least one batch"
    )


def test_a_loader_that_shards_itself_is_not_sharded_again():
    sampler = torch.utils.data.DistributedSampler(
        Indices(12), num_replicas=2, rank=1, shuffle=False
    )
    loader = TorchDataLoader(Indices(12), 2, sampler=sampler, collate_fn=same)
    one = TrainingStream(loader, seed=0, rank=1, size=2)
    assert list(islice(one.batches(0), 3)) == [[1, 3], [5, 7], [9, 11]]
    assert one.batches_per_epoch == 3


def test_reading_in_any_order_is_said_not_to_be_exact():
    loader = TorchDataLoader(Indices(12), 2, num_workers=1, in_order=False)
    stream = TrainingStream(loader, seed=0, rank=0, size=1)
    assert (
        stream.warning
        == "the training data loader has in_order=False: its batches come in another order in"
        " every run"
    )


def test_a_batch_sampler_around_torchs_samplers_is_no_obstacle():
    batches = BatchSampler(SequentialSampler(Indices(5)), 2, drop_last=True)
    loader = TorchDataLoader(Indices(5), batch_sampler=batches, collate_fn=same)
    assert stream(loader, 10**12 + 1, take=2) == [[2, 3], [0, 1]]

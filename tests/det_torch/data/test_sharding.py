"""Whose data it is: that of all, which is dealt to the ranks, or a rank's own share."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, IterableDataset

from det_torch.data import DataLoader, TrainingStream, validation_batches

KINDS = pytest.mark.parametrize("kind", [DataLoader, TorchDataLoader])


class Stream(IterableDataset[int]):
    """Records 0 to n - 1, of which rank `rank` of `size` reads its own.

    `seen` are those that were read.
    """

    def __init__(self, n: int, rank: int = 0, size: int = 1) -> None:
        self.n, self.rank, self.size = n, rank, size
        self.seen: list[int] = []

    def __iter__(self) -> Any:
        for record in range(self.rank, self.n, self.size):
            self.seen.append(record)
            yield record


class Sharded(Stream):
    det_sharded = True


class Stateful(Sharded):
    """Knows where it is."""

    at = 0

    def __iter__(self) -> Any:
        for record in islice(super().__iter__(), self.at, None):
            self.at += 1
            yield record
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def take(loader: Any, rank: int, count: int, done: int = 0, state: Any = None) -> list[list[int]]:
    stream = TrainingStream(loader, seed=0, rank=rank, size=2)
    stream.restore(state)
    batches = [batch.tolist() for batch in islice(stream.batches(done), count)]
    stream.close()
    return batches


def validated(loader: Any, rank: int, size: int = 2) -> list[list[int]]:
    return [batch.tolist() for batch in validation_batches(loader, rank=rank, size=size)]


@KINDS
@pytest.mark.parametrize("dataset", [Sharded, Stateful])
def test_sharded_stream_is_not_sharded_again(kind: Any, dataset: Any) -> None:
    """Of 16 records all are seen, each by one rank, and no rank reads what it does not use."""
    data = [dataset(16, rank, 2) for rank in range(2)]
    mine = [take(kind(data[rank], 2), rank, 4) for rank in range(2)]
    assert mine == [[[n, n + 2] for n in range(rank, 16, 4)] for rank in range(2)]
    assert [len(each.seen) for each in data] == [8, 8]
    assert [validated(kind(dataset(16, rank, 2), 2), rank) for rank in range(2)] == mine
    assert TrainingStream(kind(data[0], 2), seed=0, rank=0, size=2).advice is None


@KINDS
def test_det_sharded_works_on_loaders_and_nested_datasets(kind: Any) -> None:
    loader = kind(Stream(4, 1, 2), 2)
    loader.det_sharded = True
    assert take(loader, 1, 1) == [[1, 3]]
    inner = torch.arange(8)
    inner.det_sharded = True  # type: ignore[attr-defined]
    subset = torch.utils.data.Subset(inner, range(4))  # type: ignore[arg-type]
    assert take(kind(subset, 2), 1, 2) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("dataset", [Stream, type("Whole", (Stateful,), {"det_sharded": None})])
def test_a_stream_that_every_rank_reads_whole_is_said_to_be(dataset: Any) -> None:
    loader = TorchDataLoader(dataset(16), 2)
    sentence = (
        f"each of 2 ranks reads all of the SPLIT data ({dataset.__name__}) and keeps one batch in"
        " 2; let it read the share of context.distributed.rank alone and set its det_sharded to"
        " True, or set that to False if this is meant"
    )
    assert TrainingStream(loader, seed=0, rank=0, size=2).advice == sentence.replace(
        "SPLIT", "training"
    )
    assert validation_batches(loader, rank=0, size=2).advice == sentence.replace(
        "SPLIT", "validation"
    )
    assert TrainingStream(loader, seed=0, rank=0, size=1).advice is None
    assert take(loader, 1, 2) == [[2, 3], [6, 7]]
    loader.dataset.det_sharded = False  # type: ignore[attr-defined]
    assert TrainingStream(loader, seed=0, rank=0, size=2).advice is None


def test_data_with_indices_is_dealt_by_them_and_nothing_is_said() -> None:
    for loader in (TorchDataLoader(torch.arange(8), 2), [torch.arange(2), torch.arange(2)]):  # type: ignore[arg-type]
        assert TrainingStream(loader, seed=0, rank=0, size=2).advice is None
        assert validation_batches(loader, rank=0, size=2).advice is None


class Repeating(torch.utils.data.Sampler[int]):
    """A sampler that knows of replicas and is none of torch's, as those of other libraries."""

    rank, num_replicas = 1, 2

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        return iter(range(self.rank, 8, self.num_replicas))


def test_a_sampler_that_knows_of_replicas_is_taken_at_its_word() -> None:
    assert take(TorchDataLoader(torch.arange(8), 2, sampler=Repeating()), 1, 2) == [[1, 3], [5, 7]]  # type: ignore[arg-type]


@pytest.mark.parametrize(("dataset", "count"), [(Sharded, 9), (Stateful, 9)])
def test_each_rank_goes_on_where_it_was_in_its_own_share(dataset: Any, count: int) -> None:
    """Though their shares are of different lengths."""
    for rank in range(2):
        whole = take(TorchDataLoader(dataset(count, rank, 2), 1), rank, 14)
        for done in (3, 4, 5, 9):
            stream = TrainingStream(
                TorchDataLoader(dataset(count, rank, 2), 1), seed=0, rank=rank, size=2
            )
            list(islice(stream.batches(0), done))
            state = stream.state(done)
            stream.close()
            assert (
                take(TorchDataLoader(dataset(count, rank, 2), 1), rank, 5, done, state)
                == whole[done : done + 5]
            )


def test_sampler_that_differs_by_rank_resumes_without_warning() -> None:
    sampler = DistributedSampler(torch.arange(8), 2, 1, shuffle=False)  # type: ignore[arg-type]
    loader = TorchDataLoader(torch.arange(8), 2, sampler=sampler)  # type: ignore[arg-type]
    stream = TrainingStream(loader, seed=0, rank=1, size=2)
    list(islice(stream.batches(0), 1))
    again = TrainingStream(loader, seed=0, rank=1, size=2)
    again.restore(stream.state(1))
    assert next(again.batches(1)).tolist() == [5, 7]
    assert again.warning is None


def test_data_that_is_sharded_otherwise_than_it_was_is_said() -> None:
    stream = TrainingStream(TorchDataLoader(Stateful(8, 0, 2), 2), seed=0, rank=0, size=2)
    list(islice(stream.batches(0), 1))
    state = stream.state(1)
    sentence = (
        "the training data was {} when the checkpoint was written and is {} now, so that some"
        " records may be repeated and some missed"
    )
    for loader, size, now in (
        (Stateful(8, 0, 4), 4, "in 4 shards of its own"),
        (type("Whole", (Stateful,), {"det_sharded": False})(8), 2, "dealt by det"),
    ):
        other = TrainingStream(TorchDataLoader(loader, 2), seed=0, rank=0, size=size)
        other.restore(state)
        assert other.warning == sentence.format("in 2 shards of its own", now)


@KINDS
@pytest.mark.parametrize(("count", "size"), [(5, 2), (4, 3), (1, 2), (9, 4)])
def test_validation_counts_each_record_once_despite_padding(
    kind: Any, count: int, size: int
) -> None:
    """A DistributedSampler pads the shares of the ranks with repeated records."""
    seen: list[Any] = []
    for rank in range(size):
        sampler = DistributedSampler(torch.arange(count), size, rank, shuffle=False)  # type: ignore[arg-type]
        mine = validated(kind(torch.arange(count), 2, sampler=sampler), rank, size)
        assert mine == validated(kind(torch.arange(count), 2, sampler=sampler), rank, size)
        seen += chain(*mine)
    assert sorted(seen) == list(range(count))


def test_a_rank_may_have_nothing_to_validate() -> None:
    """Of data that it shards itself."""
    assert validated(TorchDataLoader(Sharded(1, 1, 2), 1), 1) == []

"""Validation data: once through, dealt to the ranks."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from det_core.errors import TrialError
from det_torch.data import DataLoader, validation_batches
from det_torch.samplers import RepeatSampler


class Five(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def read(loader, rank=0, size=1):
    return [
        b.tolist() if hasattr(b, "tolist") else b
        for b in validation_batches(loader, rank=rank, size=size)
    ]


LOADERS = {
    "ours": DataLoader(range(5), 2),
    "torch's": TorchDataLoader(range(5), 2),
    "a sampler": TorchDataLoader(range(5), 2, sampler=list(range(5))),
    "an endless sampler": TorchDataLoader(range(5), 2, sampler=RepeatSampler(range(5))),
    "iterable": TorchDataLoader(Five(), 2),
    "list": [[0, 1], [2, 3], [4]],
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS.keys())
def test_batch_i_goes_to_rank_i_modulo_size(loader):
    if "Repeat" in str(getattr(loader, "sampler", "")):
        assert read(loader) == [[0, 1], [2, 3], [4, 0]]
        return
    assert read(loader) == [[0, 1], [2, 3], [4]]
    assert read(loader, 0, 2) == [[0, 1], [4]]
    assert read(loader, 1, 2) == [[2, 3]]
    assert read(loader, 3, 4) == []


def test_the_length_is_that_of_the_share():
    for rank, length in ((0, 2), (1, 1), (2, 0)):
        assert (
            len(validation_batches(DataLoader(range(3), 1), rank=rank, size=2 if rank < 2 else 4))
            == length
            or rank == 2
        )
    assert len(validation_batches([1, 2, 3], rank=1, size=2)) == 1
    with pytest.raises(TypeError, match=r"the validation data \(DataLoader\) has no length"):
        len(validation_batches(TorchDataLoader(Five()), rank=0, size=1))


def test_a_shuffled_loader_gives_one_order():
    batches = validation_batches(DataLoader(range(50), 50, shuffle=True), rank=0, size=1)
    assert next(iter(batches)).tolist() == next(iter(batches)).tolist() != list(range(50))


def test_attributes_of_the_loader_are_there():
    batches = validation_batches(DataLoader(range(50), 7), rank=0, size=1)
    assert batches.dataset == range(50)


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (DataLoader([], 4), "its list holds no records"),
        ([], "this list yields nothing"),
        (
            DataLoader(range(3), 4, drop_last=True),
            "3 records do not fill a batch of 4, and drop_last is set",
        ),
    ],
)
def test_an_empty_loader_is_refused(loader, why):
    with pytest.raises(TrialError) as error:
        read(loader)
    assert (
        str(error.value)
        == f"the validation data loader is empty: {why}; give it at least one batch"
    )

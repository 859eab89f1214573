"""The recipe, outside det, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from det_torch.data import DataLoader


class Five(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_it_is_iterated_like_torchs_outside_det():
    loader = DataLoader(range(5), 2)
    assert [b.tolist() for b in loader] == [b.tolist() for b in loader] == [[0, 1], [2, 3], [4]]
    assert len(loader) == 3
    assert [b.tolist() for b in DataLoader(Five(), 2, drop_last=True)] == [[0, 1], [2, 3]]


def test_shuffling_outside_det_takes_the_generator():
    one, two = (
        DataLoader(range(9), 9, True, generator=torch.Generator().manual_seed(1)) for _ in range(2)
    )
    assert next(iter(one)).tolist() == next(iter(two)).tolist() != list(range(9))


def test_get_data_loader_repeats_shards_and_skips_in_this_order():
    loader = DataLoader(range(6), 2).get_data_loader(repeat=True, skip=1, num_replicas=2, rank=1)
    assert isinstance(loader, TorchDataLoader)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(3)] == [[0, 1], [4, 5], [2, 3]]
    assert len(loader) == 1
    assert [b.tolist() for b in DataLoader(range(3)).get_data_loader(skip=2)] == [[2]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers is -1; give 0 or more"),
        ({"timeout": -1}, "timeout is -1; give 0 (none) or more seconds"),
        (
            {"prefetch_factor": 2},
            "prefetch_factor is 2 but num_workers is 0; leave it out, or give workers",
        ),
        ({"prefetch_factor": -2, "num_workers": 1}, "prefetch_factor is -2; give 1 or more"),
        (
            {"persistent_workers": True},
            "persistent_workers is set but num_workers is 0; leave it out, or give workers",
        ),
        (
            {"sampler": [1], "shuffle": True},
            "sampler and shuffle both decide the order; leave one out",
        ),
        (
            {"batch_size": None},
            "batch_size is None and there is no batch_sampler; give one of them",
        ),
        ({"batch_size": 0}, "batch_size is 0; give 1 or more"),
        *(
            (
                {"batch_sampler": [[1]], **more},
                (
                    "batch_sampler makes the batches; leave out batch_size, shuffle, sampler and"
                    " drop_last"
                ),
            )
            for more in (
                {"batch_size": 2},
                {"shuffle": True},
                {"sampler": [1]},
                {"drop_last": True},
            )
        ),
    ],
)
def test_options_that_exclude_one_another_are_refused(options, message):
    with pytest.raises(ValueError) as error:
        DataLoader(range(5), **options)
    assert str(error.value) == message


def test_iterable_dataset_refuses_order_and_position_options():
    for options in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError) as error:
            DataLoader(Five(), **options)
        assert (
            str(error.value)
            == "an IterableDataset has its own order; leave out shuffle, sampler and batch_sampler"
        )
    with pytest.raises(ValueError) as error:
        DataLoader(Five(), None, drop_last=True)
    assert str(error.value) == "drop_last needs batches, but batch_size is None; leave it out"
    with pytest.raises(ValueError) as error:
        DataLoader(Five()).get_data_loader(skip=1)
    assert (
        str(error.value)
        == "a Five is read in its own order and cannot be repeated, sharded or skipped by index; "
        "call get_data_loader() without arguments"
    )


def test_a_bad_rank_is_refused():
    with pytest.raises(ValueError, match="rank is 2; with num_workers=2 it must be from 0 to 1"):
        DataLoader(range(5)).get_data_loader(num_replicas=2, rank=2)

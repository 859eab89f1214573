"""Cached data sets of torch.

Values of every kind, shuffled, dealt and resumed like any map-style dataset.
"""

from __future__ import annotations

import json
import pickle
from itertools import islice

import numpy as np
import pytest
import torch

from det_core.errors import TrialError
from det_torch import cached
from det_torch.data import DataLoader, TrainingStream

VALUES = {
    "tensor": torch.arange(6).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(3, dtype=torch.int8),
    "none": torch.empty(0, 4),
    "array": np.arange(4, dtype=">i2").reshape(2, 2)[:, ::-1],
    "words": np.array(["ab", "c"]),
    "number": np.float32(0.5),
    "pair": (1, [2.5, b"raw", None, {"deep": "text"}]),
}


def test_values_of_every_kind_come_back_as_they_were(tmp_path):
    (record,) = cached("v", "1", lambda: [VALUES], directory=tmp_path)
    assert record.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert type(record[name]) is type(value)
        if isinstance(value, torch.Tensor):
            assert record[name].dtype == value.dtype
            assert torch.equal(record[name], value)
        elif name == "pair":
            assert record[name] == value
        else:
            assert record[name].dtype == value.dtype
            np.testing.assert_array_equal(record[name], value)
    record["tensor"] += 1  # what was read is the reader's own


def numbers():
    return ((torch.tensor(n), n % 3) for n in range(103))


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [1, 13, 30])
@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 2)])
def test_a_shuffled_loader_of_it_goes_on_exactly(tmp_path, workers, done, rank, size):
    def stream():
        dataset = cached("numbers", "1", numbers, directory=tmp_path)
        return TrainingStream(
            DataLoader(dataset, 8, shuffle=True, num_workers=workers), seed=5, rank=rank, size=size
        )

    whole, again = stream(), stream()
    expected = [x.tolist() for x, _ in islice(whole.batches(0), 40)]
    state = whole.state(done)
    whole.close()
    again.restore(json.loads(json.dumps(state)))
    assert [x.tolist() for x, _ in islice(again.batches(done), 40 - done)] == expected[done:]
    assert again.warning is None
    again.close()


def test_it_is_made_once_and_read_by_spawned_workers(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return list(range(50))

    dataset = [cached("n", "1", make, directory=tmp_path, shards=3) for _ in range(2)][1]
    assert len(calls) == 3  # once for each shard
    assert list(dataset) == list(pickle.loads(pickle.dumps(dataset))) == list(range(50))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda: [object()],
            {},
            "record is of type builtins.object and cannot be cached; give numbers",
        ),
        (lambda: [np.array([None])], {}, "record is of type numpy.ndarray and cannot be cached"),
        (
            lambda: [torch.eye(2).to_sparse()],
            {},
            "record is of type torch.Tensor and cannot be cached",
        ),
        (lambda: 3, {}, "the function that makes 'n' returned int; return an iterable of records"),
        (
            numbers,
            {"shards": 2},
            "'n' is made in 2 shards of generator, which has no indices; return a map-style",
        ),
        (numbers, {"shards": 0}, "shards is 0; give a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_cached_is_said(tmp_path, make, options, message):
    with pytest.raises(TrialError, match=message):
        cached("n", "1", make, directory=tmp_path, **options)
    assert not (tmp_path / "n" / "1").exists()

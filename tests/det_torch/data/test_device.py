"""Moving batches to the device, and counting their records."""

from __future__ import annotations

import collections
import warnings

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from det_torch.data import data_length, to_device

META = torch.device("meta")  # a device that every machine has, and that is not the CPU
Pair = collections.namedtuple("Pair", "x y")


def test_nested_containers_keep_types_and_their_tensors_move():
    tensor = torch.ones(2)
    data = {
        "list": [tensor, (tensor, tensor)],
        "pair": Pair(tensor, 3),
        "array": np.ones(3, dtype=np.float32),
        "ordered": collections.OrderedDict(a=tensor),
        "text": "as it is",
        "none": None,
        "number": np.float32(2),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved = to_device(data, META)
    assert list(moved) == list(data)
    assert isinstance(moved["list"][1], tuple)
    assert isinstance(moved["pair"], Pair)
    assert isinstance(moved["ordered"], collections.OrderedDict)
    tensors = [
        moved["list"][0],
        *moved["list"][1],
        moved["pair"].x,
        moved["array"],
        moved["ordered"]["a"],
    ]
    assert {t.device.type for t in tensors} == {"meta"}
    assert moved["array"].dtype == torch.float32
    assert (moved["text"], moved["none"], moved["pair"].y) == ("as it is", None, 3)


def test_a_defaultdict_becomes_a_dict():
    moved = to_device(collections.defaultdict(list, a=torch.ones(1)), META)
    assert moved["a"].device == META


def test_objects_that_can_move_do():
    packed = to_device(pack_sequence([torch.ones(3), torch.ones(2)]), torch.device("cpu"))
    assert isinstance(packed, PackedSequence)

    class Graph:
        def to(self, device):
            return f"moved to {device}"

    assert to_device([Graph()], META) == ["moved to meta"]


def test_unmovable_objects_are_returned_with_a_warning_per_type():
    class Odd:
        pass

    odd, strings = Odd(), np.array(["a"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert to_device([odd, odd, {1}, strings], META) == [odd, odd, {1}, strings]
        to_device(odd, META)
    assert [str(w.message) for w in caught] == [
        f"a {name} in a batch was not moved to the device; give it a method to(device)"
        for name in ("Odd", "set", "ndarray")
    ]


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(4, 2),
        np.ones(4),
        {"x": torch.ones(4)},
        [torch.ones(4), torch.ones(9)],
        ({"a": [np.ones(4)]}, 1),
    ],
)
def test_the_length_of_a_batch_is_that_of_its_first_array(batch):
    assert data_length(batch) == 4


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([], ValueError, "an empty list is no batch"),
        ({}, ValueError, "an empty dict is no batch"),
        (
            "text",
            TypeError,
            "cannot tell how many records a str holds; put a tensor or an array first",
        ),
        (
            torch.ones(()),
            TypeError,
            "a batch begins with a single number (Tensor), which is no column of records",
        ),
    ],
)
def test_a_batch_without_length_is_refused(batch, error, message):
    with pytest.raises(error) as caught:
        data_length(batch)
    assert str(caught.value) == message

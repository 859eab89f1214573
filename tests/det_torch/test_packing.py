"""Arrays as tensors, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from det_torch import state
from det_torch.packing import pack, unpack


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(True),
        np.uint8(200),
        np.float64(0.1),
        np.bool_(True),
        [1, ("a", {"k": np.ones(2)})],
        {},
    ],
)
def test_what_is_packed_is_plain_and_comes_back_in_its_type(value: Any) -> None:
    packed = pack(value)
    state.check({"packed": packed})
    again = unpack(packed)
    assert type(again) is type(value)
    np.testing.assert_equal(again, value)
    assert getattr(again, "dtype", None) == getattr(value, "dtype", None)


def test_a_packed_array_is_a_copy() -> None:
    array = np.zeros(2)
    packed = pack(array)
    array[:] = 1
    assert unpack(packed).tolist() == [0, 0]


@pytest.mark.parametrize(
    "value",
    [object(), np.array(["text"]), {(1, 2): object}, {object(): 1}, [torch.nn.Linear(1, 1)]],
)
def test_what_cannot_be_packed_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="is no plain data"):
        pack(value)


def test_a_tensor_comes_back_to_the_device_that_it_was_on() -> None:
    """A checkpoint is read on the CPU."""
    packed = pack([torch.ones(2, device="meta")])
    packed[0]["tensor"] = torch.ones(2)
    assert unpack(packed)[0].device.type == "meta"

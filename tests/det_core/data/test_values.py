"""Records as bytes, and their order."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_core import TrialError
from det_core.data import ArrayKind, Shuffle, ValueCodec

numbers = ArrayKind(
    code=1,
    dump=lambda value: ("d", [len(value)], value.tobytes()) if type(value) is array else None,
    load=lambda name, shape, data: array(name, bytes(data)),
)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
arrays = st.lists(st.floats(allow_nan=False)).map(lambda found: array("d", found))
values = st.recursive(
    plain | arrays,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-9, 9), inner)
    ),
    max_leaves=20,
)


@given(values)
@settings(deadline=None)
def test_values_come_back_as_they_were(value: Any) -> None:
    codec = ValueCodec(numbers)
    again = codec.decode(codec.encode(value))
    assert again == value
    assert repr(again) == repr(value)


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            [1, {"image": object()}],
            (
                r"record\[1\]\['image'\] is of type builtins.object and cannot be cached; give"
                r" numbers, text"
            ),
        ),
        (Pair(1, 2), r"record is of type .*Pair and cannot be cached"),
        ({(1, 2): 3}, r"record has keys that are neither text nor whole numbers"),
        ((2**70,), r"a number has more than 64 bits"),
        ("\ud800", r"a text no UTF-8"),
    ],
)
def test_unsupported_value_is_refused_with_its_place_and_name(value: Any, message: str) -> None:
    with pytest.raises(TrialError, match=message):
        ValueCodec().encode(value)


def test_arrays_of_another_framework_are_named() -> None:
    with pytest.raises(TrialError, match="arrays of kind 1, which this framework does not have"):
        ValueCodec().decode(ValueCodec(numbers).encode(array("d", [1.0])))


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 50))
@settings(deadline=None, max_examples=50)
def test_shuffle_is_a_permutation_readable_at_any_position(
    count: int, seed: int, epoch: int
) -> None:
    order = Shuffle(count, seed, epoch)
    assert sorted(order) == list(range(count))
    assert order[count // 2 :] == list(Shuffle(count, seed, epoch))[count // 2 :]
    assert (len(order), order[-1]) == (count, order[count - 1])
    with pytest.raises(IndexError, match=f"there is no place {count} in an order of {count}"):
        order[count]


def test_each_epoch_shuffles_differently_and_uniformly() -> None:
    orders = [list(Shuffle(1000, 7, epoch)) for epoch in range(100)]
    assert len({tuple(order) for order in orders}) == 100
    firsts = [order[0] for order in orders]
    assert 350 < sum(firsts) / 100 < 650
    neighbours = sum(abs(a - b) == 1 for order in orders for a, b in pairwise(order))
    assert neighbours < 400  # 200 in orders that are drawn

"""What the ranks' objects are on their way.

Words of known types, and pickled only where they are of others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_node.backends._words import _PICKLED, decode_value, encode_value, split_frames

np = pytest.importorskip("numpy")

KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.binary(),
    st.tuples(st.integers(), st.text()),
)
PLAIN = st.recursive(
    st.one_of(KEYS, st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(KEYS, inner),
        st.sets(KEYS),
        st.frozensets(KEYS),
    ),
    max_leaves=20,
)


@dataclass
class Mine:
    x: int


def sent(value: Any) -> tuple[Any, bool]:
    """Return what arrives, and whether it was pickled on the way."""
    data = memoryview(bytearray(b"".join(encode_value(value))))
    return decode_value(data), bytes(split_frames(data)[-1][:1]) == _PICKLED


def types(value: Any) -> Any:
    """Return the types in a value, as 1 == True == 1.0."""
    if isinstance(value, dict):
        return dict, sorted(map(repr, value)), [types(each) for each in value.values()]
    if isinstance(value, list | tuple):
        return type(value), [types(each) for each in value]
    return type(value), repr(
        sorted(map(repr, value)) if isinstance(value, set | frozenset) else value
    )


@settings(max_examples=50, deadline=None)
@given(PLAIN)
def test_plain_values_arrive_as_they_are_and_are_not_pickled(value: Any) -> None:
    arrived, pickled = sent(value)
    assert arrived == value
    assert types(arrived) == types(value)
    assert not pickled


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(20)[::3],
        np.array(7, dtype=np.int8),
        np.zeros((0, 3), dtype=np.float32),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array([1.5], dtype=">f8"),
        np.array(["a", "bcd"]),
        np.array([b"x"]),
        np.array(["2026-01-02"], dtype="M8[D]"),
        np.array([math.nan, -0.0, math.inf], dtype=np.float16),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_arrays_keep_type_and_shape_without_being_pickled(array: Any) -> None:
    arrived, pickled = sent({"it": (array, [array])})
    for each in (arrived["it"][0], arrived["it"][1][0]):
        assert (each.dtype, each.shape, each.tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )
        assert each.flags.writeable
    assert not pickled


@pytest.mark.parametrize(
    "scalar", [np.float64(0.1), np.float32(3), np.int64(-5), np.bool_(True), np.str_("ab")]
)
def test_scalars_of_numpy_arrive_with_their_types(scalar: Any) -> None:
    arrived, pickled = sent([scalar])
    assert arrived == [scalar]
    assert type(arrived[0]) is type(scalar)
    assert not pickled


def test_nan_is_a_number_like_others() -> None:
    arrived, pickled = sent([math.nan, math.inf, -0.0])
    assert repr(arrived) == "[nan, inf, -0.0]"
    assert not pickled


def test_other_objects_are_pickled_with_their_arrays_apart() -> None:
    around = [1]
    around.append(around)  # type: ignore[arg-type]
    array = np.arange(3)
    for value in (
        Mine(3),
        {"a": [Mine(3)]},
        "\ud800",
        np.array([None]),
        np.zeros(2, dtype=[("x", "f8")]),
    ):
        arrived, pickled = sent(value)
        assert repr(arrived) == repr(value)
        assert pickled
    (first, second), pickled = sent((Mine(3), array))
    assert (first, second.tolist(), second.flags.writeable, pickled) == (
        Mine(3),
        [0, 1, 2],
        True,
        True,
    )
    arrived, pickled = sent(around)
    assert arrived[1] is arrived
    assert pickled


def test_what_is_made_up_is_refused_without_being_run() -> None:
    for made_up in (b"", bytes(8), b"\0" * 7 + b"\1" + b"\xff" * 8, b"\0" * 7 + b"\1" + bytes(8)):
        with pytest.raises(Exception, match=r".") as error:
            decode_value(memoryview(made_up))
        assert not isinstance(error.value, SystemExit)

"""The comparison of two states: what counts as a difference."""

from __future__ import annotations

import collections
import copy
from typing import Any

import numpy as np
import pytest

from det_testing import differences


def versioned(version: int) -> Any:
    state = collections.OrderedDict(weight=np.ones(2))
    state._metadata = {"": {"version": version}}  # type: ignore[attr-defined]
    return state


@pytest.mark.parametrize(
    ("mine", "other", "place"),
    [
        ({"a": [1, np.float64(1)]}, {"a": [1, 1.0]}, "['a'][1]: float64, not float"),
        (np.zeros(2), np.zeros(2, np.float32), ": ("),
        (np.zeros(2), np.zeros((1, 2)), ": ("),
        (np.array([0.0]), np.array([-0.0]), ": ("),
        (np.array([1.0]), np.array([np.nextafter(1.0, 2)]), ": ("),
        ({"a": 1}, {"b": 1}, ": the keys ['a'], not ['b']"),
        ({1: 0, 2: 0}, {2: 0, 1: 0}, ": the keys"),
        ([1], [1, 2], ": 1 items, not 2"),
        ((1,), [1], ": tuple, not list"),
        ({1}, {2}, ": {1}, not {2}"),
        (True, 1, ": bool, not int"),
        (versioned(1), versioned(2), ".__dict__['_metadata']['']['version']: 1, not 2"),
    ],
)
def test_a_difference_is_named_with_its_place(mine: Any, other: Any, place: str) -> None:
    found = differences(mine, other)
    assert len(found) == 1
    assert found[0].startswith(place)


@pytest.mark.parametrize(
    "value", [float("nan"), np.array([np.nan, -0.0]), versioned(1), {"a": ({1}, None, b"x", "y")}]
)
def test_a_value_does_not_differ_from_its_copy(value: Any) -> None:
    assert differences(value, copy.deepcopy(value)) == []

"""What counts as a number among metrics."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest

from det_core import MetricError, number


class Scalar:
    """What frameworks give: a number on a device, of some shape."""

    def __init__(self, value: Any, shape: tuple[int, ...] = ()) -> None:
        self.value, self.shape = value, shape

    def item(self) -> Any:
        if math.prod(self.shape) != 1:
            raise RuntimeError("a Tensor with several elements cannot be converted to Scalar")
        return self.value


class Level(enum.IntEnum):
    HIGH = 3


class Precise(float):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (0.5, 0.5),
        (True, True),
        (Scalar(0.5), 0.5),
        (Scalar(2, (1, 1)), 2),
        (Level.HIGH, 3),
        (Precise(0.5), 0.5),
    ],
)
def test_a_number_is_given_as_pythons_own(value: Any, expected: float) -> None:
    got = number("loss", value)
    assert (got, type(got)) == (expected, type(expected))


def test_nan_and_infinities_are_numbers() -> None:
    assert math.isnan(number("loss", math.nan))
    assert number("loss", Scalar(math.inf)) == math.inf


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0.5", r"'0\.5' \(str\)"),
        (None, r"None \(NoneType\)"),
        ([1.0], r"\[1\.0\] \(list\)"),
        (Scalar(0.5, (2, 3)), r"a Scalar of shape \(2, 3\)"),
        (Scalar("x"), r"a Scalar of shape \(\)"),
        (1j, r"1j \(complex\)"),
    ],
)
def test_anything_else_is_named(value: Any, shown: str) -> None:
    with pytest.raises(
        MetricError,
        match=rf"^metric 'loss' is {shown}; return a number, or a tensor or array that holds one$",
    ):
        number("loss", value)


def test_a_long_value_is_cut() -> None:
    with pytest.raises(MetricError) as error:
        number("loss", "x" * 10_000)
    assert len(str(error.value)) < 200

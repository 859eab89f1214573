from __future__ import annotations

import pytest

from det_core.config import Categorical, Const, Double, Int, Log
from det_core.errors import ConfigError
from det_driver.search._uniform import Points


def points(hyperparameter: object) -> list[object]:
    return [point["x"] for point in _all(Points({"x": hyperparameter}))]


def _all(grid: Points) -> list[dict[str, object]]:
    return [grid[i] for i in range(len(grid))]


@pytest.mark.parametrize(
    ("hyperparameter", "expected"),
    [
        (Int(minval=-4, maxval=-2, count=3), [-4, -3, -2]),
        (Int(minval=0, maxval=20, count=3), [0, 10, 20]),
        (Int(minval=0, maxval=2, count=9), [0, 1, 2]),
        (Int(minval=0, maxval=5, count=3), [0, 3, 5]),  # 2.5: half away from zero
        (Int(minval=-5, maxval=0, count=3), [-5, -3, 0]),
        (Int(minval=1, maxval=2, count=1), [2]),
        (Double(minval=0, maxval=1, count=5), [0, 0.25, 0.5, 0.75, 1]),
        (Double(minval=0, maxval=1, count=1), [0.5]),
        (Log(minval=-3, maxval=-1, count=3), [10**-3.0, 10**-2.0, 10**-1.0]),
        (Log(minval=0, maxval=4, base=2, count=1), [4]),
        (Categorical(vals=("a", "b")), ["a", "b"]),
        (Const(val=[1, 2]), [[1, 2]]),
        ({}, [{}]),
    ],
)
def test_an_axis_has_these_points(hyperparameter: object, expected: list[object]) -> None:
    assert points(hyperparameter) == expected


def test_the_first_key_is_the_slowest() -> None:
    grid = Points({"2": Int(minval=0, maxval=10, count=3), "1": Int(minval=0, maxval=20, count=3)})
    assert _all(grid) == [{"1": a, "2": b} for a in (0, 10, 20) for b in (0, 5, 10)]


def test_nested_axes_multiply() -> None:
    grid = Points(
        {
            "b": {"y": Categorical(vals=(1, 2)), "x": Categorical(vals=(3, 4)), "none": {}},
            "a": Const(val=0),
        }
    )
    assert _all(grid) == [
        {"a": 0, "b": {"none": {}, "x": x, "y": y}} for x in (3, 4) for y in (1, 2)
    ]


@pytest.mark.parametrize("kind", [Int, Double, Log])
def test_a_range_without_a_count_is_named(kind: type) -> None:
    with pytest.raises(
        ConfigError,
        match=r"hyperparameters\.net\.x: grid search is in use but count was not provided",
    ):
        Points({"net": {"x": kind(minval=0, maxval=1)}})


def test_a_large_grid_takes_no_memory() -> None:
    grid = Points({name: Int(minval=1, maxval=1000, count=1000) for name in "abcd"})
    assert len(grid) == 10**12
    assert grid[10**12 - 1] == dict.fromkeys("abcd", 1000)

"""What trials say of hyperparameters: which were chosen, how much each explains, how good trials are along one."""

from __future__ import annotations

import math
import random
import time

import pytest

from det_core.config import Categorical, Const, Double, Log
from det_driver.client import Slice, Space, importances, slices

SPACE = Space(
    {
        "net": {"lr": Log(minval=-4, maxval=0), "width": Const(val=64)},
        "data": Const(val={"size": 3}),
        "kind": Categorical(vals=("a", "b")),
    }
)


def test_what_is_chosen_is_told_from_constants_by_dotted_names_in_the_order_of_the_configuration() -> None:
    hparams = {"kind": "a", "net": {"width": 64, "lr": 0.1}, "data": {"size": 3}}
    assert SPACE.chosen(hparams) == {"net.lr": 0.1, "kind": "a"}
    assert list(SPACE.chosen(hparams)) == ["net.lr", "kind"]
    assert SPACE.constants(hparams) == {"net.width": 64, "data.size": 3}


def test_a_constant_that_a_searcher_altered_was_chosen() -> None:
    hparams = {"kind": "a", "net": {"width": 32, "lr": 0.1}, "data": {"size": 3}}
    assert SPACE.chosen(hparams) == {"net.lr": 0.1, "kind": "a", "net.width": 32}
    assert SPACE.names([{"kind": "b"}, hparams]) == ["net.lr", "kind", "net.width"]


def test_only_what_is_declared_log_is_logarithmic() -> None:
    assert [name for name in ("net.lr", "kind", "net.width") if SPACE.logarithmic(name)] == ["net.lr"]
    assert not Space({"x": Double(minval=1e-9, maxval=1.0)}).logarithmic("x")


def test_names_are_shortened_as_far_as_they_stay_apart() -> None:
    names = Space.short(["net.lr", "head.lr", "net.width", "seed"])
    assert names == {"net.lr": "net.lr", "head.lr": "head.lr", "net.width": "width", "seed": "seed"}


def test_what_decides_is_most_important_and_what_does_nothing_is_not() -> None:
    draw = random.Random(1)
    trials = []
    for _ in range(120):
        x, kind, noise = draw.random(), draw.choice("ab"), draw.random()
        trials.append(({"noise": noise, "kind": kind, "x": x}, 3 * x + (kind == "b") + 0.1 * draw.random()))
    found = importances(trials)
    assert list(found)[:2] == ["x", "kind"]
    assert found["x"] > 0.6
    assert 0.02 < found["kind"] < 0.3
    assert found["noise"] < 0.08


def test_it_does_not_matter_how_the_metric_or_a_hyperparameter_is_scaled() -> None:
    draw = random.Random(2)
    trials = [({"x": draw.random(), "y": draw.random()}, draw.random()) for _ in range(40)]
    stretched = [({"x": math.exp(9 * h["x"]), "y": h["y"]}, 1e6 * metric**3) for h, metric in trials]
    assert importances(stretched) == pytest.approx(importances(trials))


@pytest.mark.parametrize("trials", [[({"x": i}, float(i)) for i in range(7)], [({"x": i}, 1.0) for i in range(20)], []])
def test_too_few_trials_or_none_that_differ_say_nothing(trials) -> None:
    assert importances(trials) == {}


def test_numbers_are_cut_into_slices_of_equal_count_and_names_are_slices_of_their_own() -> None:
    trials = [(float(i), float((i - 12) ** 2)) for i in range(20)]
    found = slices(trials, smaller_is_better=True)
    assert [(each.least, each.greatest, each.trials) for each in found] == [
        (0, 3, 4),
        (4, 7, 4),
        (8, 11, 4),
        (12, 15, 4),
        (16, 19, 4),
    ]
    assert min(found, key=lambda each: each.best) == Slice(12.0, 15.0, 4, 0.0, 2.5)
    named = slices([("a", 1.0), ("b", 2.0), ("b", 4.0), (None, 0.5)], smaller_is_better=False)
    assert named == [Slice("b", "b", 2, 4.0, 3.0), Slice("a", "a", 1, 1.0, 1.0), Slice(None, None, 1, 0.5, 0.5)]


def test_what_matters_among_many_trials_is_found_in_a_moment() -> None:
    """Where each step looks at all that went before, it takes minutes."""
    trials = [({"lr": n * 7919 % 10007, "units": n % 64}, float(n * 7919 % 10007)) for n in range(20_000)]
    began = time.process_time()
    found = importances(trials)
    assert time.process_time() - began < 3
    assert found["lr"] > 0.9
    assert found["units"] < 0.1

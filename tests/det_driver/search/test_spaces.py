"""Spaces with steps, scales, conditions and constraints, through every kind of searcher."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_core.config import (
    AsyncHalving,
    Categorical,
    Const,
    Double,
    Grid,
    Hyperband,
    Int,
    Length,
    Log,
    Pbt,
    Random,
    Single,
)
from det_core.errors import ConfigError
from det_driver.search import Limits, RandomState, made, make
from det_driver.search._sampler import UnitCube
from det_driver.space import Expression, Undefined
from det_testing._search_play import Play

SPACE: dict[str, Any] = {
    "dropout": Double(minval=0, maxval=0.5, step=0.1, count=2),
    "hidden": Int(minval=8, maxval=512, log=True, count=2),
    "layers": Int(minval=1, maxval=9, step=2),
    "lr": Log(minval=-5, maxval=0, count=3),
    "opt": {
        "kind": Categorical(vals=("sgd", "adam")),
        "momentum": Double(minval=0, maxval=0.99, count=2, when={"opt.kind": "sgd"}),
        "nesterov": Categorical(vals=(True, False), when={"opt.kind": ["sgd"], "layers": [1, 3]}),
        "damping": Const(0.5, when={"opt.nesterov": True}),
    },
    "sizes": Categorical(vals=([16, 16], [32]), ordered=True),
    "units": Const([64, 64]),
}
CONSTRAINTS = ("hidden * layers <= 1024", "opt.momentum < 0.9 or lr < 0.1")
LENGTH = Length("epochs", 9)
MADE: dict[str, Callable[..., Any]] = {
    "single": lambda **keys: Single(metric="loss", max_length=LENGTH, **keys),
    "random": lambda **keys: Random(metric="loss", max_trials=30, max_length=LENGTH, **keys),
    "grid": lambda **keys: Grid(metric="loss", max_length=LENGTH, **keys),
    "halving": lambda **keys: AsyncHalving(
        metric="loss", num_rungs=2, max_trials=30, max_length=LENGTH, **keys
    ),
    "evolution": lambda **keys: AsyncHalving(
        metric="loss", num_rungs=2, max_trials=70, max_length=LENGTH, sampler="evolution", **keys
    ),
    "hyperband": lambda **keys: Hyperband(metric="loss", max_length=LENGTH, **keys),
    "pbt": lambda **keys: Pbt(
        metric="loss", population_size=9, num_rounds=4, length_per_round=LENGTH, **keys
    ),
}


def check(hparams: dict[str, Any]) -> None:
    """AssertionError where these cannot be hyperparameters of SPACE."""
    assert hparams["dropout"] in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    assert hparams["hidden"] in range(8, 513)
    assert hparams["layers"] in (1, 3, 5, 7, 9)
    opt = hparams["opt"]
    assert ("momentum" in opt) == (opt["kind"] == "sgd")
    assert ("nesterov" in opt) == (opt["kind"] == "sgd" and hparams["layers"] in (1, 3))
    assert ("damping" in opt) == (opt.get("nesterov") is True)
    assert hparams["units"] == [64, 64]
    assert hparams["sizes"] in ([16, 16], [32])
    assert hparams["hidden"] * hparams["layers"] <= 1024
    assert "momentum" not in opt or opt["momentum"] < 0.9 or hparams["lr"] < 0.1


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_searcher_keeps_to_conditions_and_constraints(name: str, seed: int) -> None:
    play = Play(make(MADE[name](constraints=CONSTRAINTS), SPACE, seed), seed, early=0.2).finish()
    for create in play.created:
        check(create.hparams)
    both = {"sgd", "adam"} if len(play.created) > 20 else set()
    assert {create.hparams["opt"]["kind"] for create in play.created} >= both


def test_a_grid_has_each_choice_once() -> None:
    """Also those that differ only in what the trial does not have."""
    play = Play(make(MADE["grid"](), SPACE, 0)).finish()
    found = [json.dumps(create.hparams, sort_keys=True) for create in play.created]
    assert len(found) == len(set(found))
    # 2 momentums; two values of nesterov for two of five layers
    sgd = 2 * (2 * 2 + 3)
    assert len(found) == 2 * 2 * 3 * 2 * (sgd + 5)


def test_a_condition_changes_no_other_value_that_is_drawn() -> None:
    bare = {
        "a": Categorical(vals=(1, 2)),
        "b": Double(minval=0, maxval=1),
        "c": Double(minval=0, maxval=1),
    }
    conditional = bare | {"b": Double(minval=0, maxval=1, when={"a": 1})}
    theirs, ours = (
        [c.hparams for c in Play(make(MADE["random"](), s, 3)).finish().created]
        for s in (bare, conditional)
    )
    for each, other in zip(theirs, ours, strict=True):
        assert other == ({k: v for k, v in each.items() if k != "b"} if each["a"] == 2 else each)


def test_whole_numbers_on_a_logarithmic_scale() -> None:
    """Each doubling is about equally likely, and the bounds are reached."""
    play = Play(
        make(
            Random(metric="loss", max_trials=4000, max_length=LENGTH),
            {"n": Int(minval=1, maxval=15, log=True)},
            1,
        )
    )
    counts = Counter(create.hparams["n"] for create in play.finish().created)
    assert set(counts) == set(range(1, 16))
    octaves = [sum(counts[n] for n in range(2**k, 2 ** (k + 1))) for k in range(4)]
    assert max(octaves) < 1.15 * min(octaves)


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_a_point_is_the_place_of_its_hyperparameters(point: list[float]) -> None:
    """So hyperparameters that a person gives can be learned from."""
    space = SPACE | {
        "opt": {
            "kind": Categorical(vals=("sgd", "adam")),
            "momentum": Double(minval=0, maxval=0.99),
        }
    }
    cube = UnitCube(space)
    point = point[: len(cube.axes)]
    hparams = cube.hparams(point)
    again = cube.hparams(cube.place(hparams or {}))
    assert again is not None
    for name, value in (hparams or {}).items():
        if name in ("lr", "opt"):
            assert math.isclose(again["lr"], hparams["lr"], rel_tol=1e-9)
            assert math.isclose(again["opt"]["momentum"], hparams["opt"]["momentum"], abs_tol=1e-9)
        else:
            assert again[name] == value


def test_searcher_without_constraint_support_refuses_constraints() -> None:
    """A plugin of an earlier version would leave them out of account."""
    config = MADE["random"](constraints=CONSTRAINTS)
    with pytest.raises(ConfigError, match="the searcher random knows of none; leave them out"):
        made(config, SPACE, 0, lambda config, space, seed: make(MADE["random"](), space, seed))
    assert made(config, SPACE, 0, make).limits is not None


def test_unsatisfiable_constraints_end_the_search_with_an_error() -> None:
    with pytest.raises(
        ConfigError, match="refused 20,000 choices of hyperparameters in a row; narrow the ranges"
    ):
        make(MADE["random"](constraints=("lr > 2",)), SPACE, 0).start()


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a + b * 2 == 7", True),
        ("(a + b) * 2 == 7", False),
        ("-a < 0 <= b", True),
        ("a ** 2 > 0.5 and not b == 4", True),
        ("b // 2 == 1 and b % 2 == 1 and b / 2 == 1.5", True),
        ("kind in ['x', 'y']", True),
        ("kind not in ('x', 'z')", False),
        ("max(a, b) == 3 and min(a, b) == 1 and abs(-3) == b", True),
        ("log2(b + 1) == 2 and sqrt(b + 1) == 2 and log10(a) == 0", True),
        ("round(b / 2) == 2 and len(kind) == 1", True),
        ("a == 1 if kind == 'x' else a == 2", True),
        ("net.size > 4", True),
        ("absent > 4", True),
        ("a == 2 and absent > 4", True),
        ("b / (a - 1) > 0", False),
        ("b ** 99999 > 0", False),
        ("(0 - b) ** 0.5 > 0", False),
        ("flag", True),
        ("none == None", True),
        ("`weight-decay` < a and `a` == 1", True),
        ("`weight-decay`*2 == 1 and __0 == 5", True),
        ("net.`no-bias` and not `net.no-bias` == False", True),
        ("`lambda` > 1", True),
        ("kind == '`x`' or kind == \"`\"", False),
        ("`no such` > 1", True),
    ],
)
def test_expressions(text: str, holds: bool) -> None:
    values = {"a": 1, "b": 3, "kind": "x", "net.size": 8, "flag": True, "none": None}
    values |= {"weight-decay": 0.5, "net.no-bias": True, "lambda": 2, "__0": 5}

    def lookup(name: str) -> Any:
        if name not in values:
            raise Undefined(name)
        return values[name]

    assert Expression(text).holds(lookup) is holds


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "(lambda: 1)() == 1",
        "[a for a in b] == 1",
        "a[0] == 1",
        "f'{a}' == 1",
        "(a := 1) == 1",
        "a.b().c == 1",
        "'x'.join(a) == 1",
        "max(*a) == 1",
        "max(a, key=b) == 1",
        "b'x' == a",
        "1j == a",
        "a is b",
        "a @ b == 1",
        "a; b",
        "(" * 300 + "a" + ")" * 300,
        "a < " + "1" * 1000,
        "`a < 1",
        "`` < 1",
        "a < `b`c`",
        "`a`.b() == 1",
    ],
)
def test_what_is_no_condition_is_not_run(text: str) -> None:
    with pytest.raises(ValueError, match=r"; |is not understood"):
        Expression(text)


@given(st.text(alphabet="ab19.+-*/%<>=()[]`'\", andornotifelse", max_size=40))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        expression = Expression(text)
    except ValueError:
        return
    try:
        expression.holds(lambda name: 3)
    except TypeError:
        return


def test_a_message_shows_a_name_in_backticks_as_it_was_written() -> None:
    with pytest.raises(ValueError, match=r"^'`a-b`\[0\]' is not understood"):
        Expression("`a-b`[0] == 1")
    with pytest.raises(ValueError, match="it cannot be read at column 11 "):
        Expression("`a-b` < 1 b")


def test_numbers_do_not_grow_without_end() -> None:
    """Powers are of floats, which overflow."""
    assert not Expression("9 ** 9 ** 9 ** 9 > a").holds(lambda _: 1)


def test_refused_choices_are_counted() -> None:
    limits = Limits(SPACE, ("layers > 1",))
    rng = RandomState(0)
    cube = UnitCube(SPACE, limits)
    for _ in range(100):
        cube.draw(rng)
    assert limits.drawn - limits.refused == 100
    assert 10 < limits.refused < 50

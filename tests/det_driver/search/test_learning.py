"""Searches that begin with the results of earlier experiments, of the same space or of another."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from det_core.config import (
    Auto,
    Categorical,
    Combined,
    Const,
    Double,
    Int,
    Length,
    Log,
    Random,
    SearcherConfig,
)
from det_core.errors import ConfigError
from det_driver.driver._search import (
    JournaledSearch,
    SearchEvent,
    SearchStarted,
    SearchTaught,
    decode_event,
    encode_event,
)
from det_driver.search import EarlierResult, Searcher, choose, made, make
from det_testing._search_play import Play, give

SPACE: dict[str, Any] = {
    "lr": Log(minval=-4, maxval=0, base=10),
    "net": {"layers": Int(minval=1, maxval=9)},
    "optimizer": Categorical(vals=["sgd", "adam"]),
    "momentum": Double(minval=0, maxval=1, when={"optimizer": "sgd"}),
    "seed": Const(val=1),
}
LENGTH = Length("epochs", 9)


def search(space: dict[str, Any] = SPACE, **settings: Any) -> Searcher:
    settings = {"sampler": "evolution", "schedule": "async_halving", "max_trials": 30, **settings}
    return made(
        Combined(metric="loss", max_length=LENGTH, learn_from=(3,), **settings), space, 0, make
    )


def results(count: int = 60, **changes: Any) -> list[EarlierResult]:
    """Return trials whose loss grows with the distance from lr = 0.01 and five layers."""
    found = []
    for i in range(count):
        lr, layers = 10 ** (-4 * i / (count - 1)), 1 + i % 9
        hparams = {"lr": lr, "net.layers": layers, "optimizer": "adam", "seed": 1} | changes
        found.append(EarlierResult(hparams, 9.0, abs(math.log10(lr) + 2) + abs(layers - 5) / 9))
    return found


def distance(hparams: dict[str, Any]) -> float:
    return abs(math.log10(hparams["lr"]) + 2)


def test_first_trials_are_near_the_best_earlier_ones() -> None:
    """Without earlier results, they are spread over the range."""
    learning, other = search(), search()
    assert learning.learn(results()) == ["learns from 60 of 60 earlier trials"]
    near = [create.hparams for create in Play(learning, 1).finish().created]
    far = [create.hparams for create in Play(other, 1).finish().created]
    assert sum(map(distance, near)) / len(near) < 0.6 * sum(map(distance, far)) / len(far)


def test_a_search_that_has_learnt_repeats_itself_and_can_be_kept() -> None:
    events: list[SearchEvent] = [SearchTaught(tuple(results())), SearchStarted()]
    assert [decode_event(encode_event(event).encode()) for event in events] == events
    one, other = (JournaledSearch.replayed(search(), events) for _ in range(2))
    assert one.plans == other.plans
    assert one.learnt == ["learns from 60 of 60 earlier trials"]
    play = Play(search(), 4)
    play.searcher.learn(results())
    play.finish()
    again, restored = search(), search()
    again.learn(results())
    for number, (event, answer) in enumerate(zip(play.events, play.operations, strict=True)):
        assert give(again, event) == answer
        if number > 20:
            assert give(restored, event) == answer
        if number == 20:
            restored.restore(json.loads(json.dumps(again.state(), allow_nan=False)))


def test_common_hyperparameters_are_transferred() -> None:
    """Those that are left out are reported."""
    earlier = [
        *results(4, width=7, seed=2),
        EarlierResult({"lr": 30.0, "optimizer": "sgd"}, 9.0, 0.1),
        EarlierResult({"lr": 0.1, "optimizer": "lion"}, 9.0, 0.1),
    ]
    assert search().learn(earlier) == [
        "learns from 4 of 6 earlier trials",
        "left out: seed, which is always 1 here (4 of 6)",
        "left out: trials with lr out of its range (1 of 6)",
        "left out: trials with optimizer out of its range (1 of 6)",
        "left out: width, which this search does not have (4 of 6)",
    ]


def test_hyperparameter_new_to_the_search_is_drawn() -> None:
    """A value that all of them share would look as good as they are."""
    searcher = search(SPACE | {"dropout": Double(minval=0, maxval=1)})
    searcher.learn(results(40))
    state: Any = searcher.state()
    points = [point for trial, point in state["searcher"]["sampler"]["points"] if trial < 0]
    drawn = [point[0] for point in points]
    assert len(points) == 40
    assert min(drawn) < 0.2
    assert max(drawn) > 0.8


def test_transferred_trials_keep_the_constraints() -> None:
    said = search(constraints=("net.layers <= 3",)).learn(results(9))
    assert said == [
        "learns from 3 of 9 earlier trials",
        "left out: trials that conditions or searcher.constraints do not allow (6 of 9)",
    ]


@pytest.mark.parametrize(
    "config",
    [
        Random(metric="loss", max_trials=3, learn_from=(1,)),
        Combined(metric="loss", sampler="sobol", max_trials=3, learn_from=(1,)),
    ],
)
def test_search_that_cannot_learn_refuses_learn_from(config: SearcherConfig) -> None:
    with pytest.raises(
        ConfigError, match=r"^searcher\.learn_from is given, and this searcher learns nothing; take"
    ):
        made(config, SPACE, 0, make)


def test_auto_takes_a_sampler_that_learns() -> None:
    config = Auto(metric="loss", max_trials=5, max_length=LENGTH, learn_from=(1,))
    choice = choose(config, {"optimizer": Categorical(vals=["sgd", "adam"])})
    assert str(choice).startswith("sampler evolution, ")
    assert "it begins with the results of earlier experiments" in choice.why
    made(config, SPACE, 0, make).learn(results())

"""Searches that get more trials, or trials with known hyperparameters.

They get them while they run, and when they are over.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_core.config import (
    AdaptiveAsha,
    AsyncHalving,
    Categorical,
    Combined,
    Const,
    Double,
    Grid,
    Hyperband,
    Int,
    Length,
    Log,
    Pbt,
    Random,
    SearcherConfig,
)
from det_core.errors import ConfigError
from det_driver.driver._search import (
    JournaledSearch,
    SearchEvent,
    SearchStarted,
    SearchSteered,
    TrialExited,
    TrialValidated,
    decode_event,
    encode_event,
)
from det_driver.search import Close, Create, Exit, Searcher, Shutdown, Train, made, make
from det_testing._search_play import Play, give

SPACE: dict[str, Any] = {
    "lr": Log(minval=-4, maxval=0, base=10),
    "net": {"layers": Int(minval=1, maxval=9, count=3)},
    "optimizer": Categorical(vals=["sgd", "adam"]),
    "momentum": Double(minval=0, maxval=1, count=2, when={"optimizer": "sgd"}),
    "seed": Const(val=1),
}
GRID = {**SPACE, "lr": Log(minval=-4, maxval=0, base=10, count=2)}
LENGTH = Length("epochs", 9)
KINDS: dict[str, SearcherConfig] = {
    "random": Random(metric="loss", max_trials=7, max_length=LENGTH, max_concurrent_trials=3),
    "random without a limit": Random(
        metric="loss", max_trials=7, max_length=LENGTH, max_concurrent_trials=0
    ),
    "async_halving": AsyncHalving(metric="loss", num_rungs=3, max_trials=20, max_length=LENGTH),
    "stopping": AsyncHalving(
        metric="loss", num_rungs=3, max_trials=20, max_length=LENGTH, stop_once=True
    ),
    "adaptive_asha": AdaptiveAsha(
        metric="loss", max_trials=20, max_length=LENGTH, max_concurrent_trials=4
    ),
    "evolution": Combined(
        metric="loss",
        sampler="evolution",
        schedule="async_halving",
        max_trials=60,
        max_length=LENGTH,
    ),
    "sobol": Combined(metric="loss", sampler="sobol", max_trials=9, max_length=LENGTH),
}
KNOWN = {"lr": 0.01, "net.layers": 5, "optimizer": "sgd", "momentum": 0.5}


def search(config: SearcherConfig, seed: int = 0, space: dict[str, Any] = SPACE) -> Searcher:
    return made(config, space, seed, make)


def extend(play: Play, count: int, *enqueued: dict[str, Any]) -> None:
    play.over = None
    play.ledger.over = False
    play._give(("extend", count, enqueued))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 1), st.integers(0, 9))
def test_a_search_that_is_extended_makes_so_many_trials_more(
    kind: str, seed: int, share: float, count: int
) -> None:
    """At any moment, also at its end, from the same events, and from a state kept at any moment."""
    whole = Play(
        search(KINDS[kind], seed), seed, faults=0.1, early=0.2, reasons=(Exit.ERRORED,)
    ).finish()
    play = Play(search(KINDS[kind], seed), seed, faults=0.1, early=0.2, reasons=(Exit.ERRORED,))
    for _ in range(max(1, round(share * len(whole.events)))):
        play.step()
    made_before = len(play.created)
    extend(play, count, KNOWN, {})
    play.finish()
    assert len(play.created) == len(whole.created) + count + 2
    known = {"lr": 0.01, "net": {"layers": 5}, "optimizer": "sgd", "momentum": 0.5, "seed": 1}
    assert play.created[made_before].hparams == known
    assert play.searcher.progress({}) == 1.0

    again, restored = search(KINDS[kind], seed), search(KINDS[kind], seed)
    moment = min(int(share * len(play.events)), len(play.events) - 1)
    for number, (event, answer) in enumerate(zip(play.events, play.operations, strict=True)):
        assert give(again, event) == answer
        if number > moment:
            assert give(restored, event) == answer
        if number == moment:
            restored.restore(json.loads(json.dumps(again.state(), allow_nan=False)))


@pytest.mark.parametrize(
    "config", [Grid(metric="loss", max_length=LENGTH), Combined(metric="loss", sampler="grid")]
)
def test_grid_accepts_only_its_own_points(
    config: SearcherConfig,
) -> None:
    """Each of its points is tried once all the same."""
    play = Play(search(config, space=GRID), 1)
    play.step()
    extend(play, 0, {"lr": 0.5})
    play.finish()
    whole = Play(search(config, space=GRID), 1).finish()
    values = [create.hparams for create in play.created]
    assert len(values) == len(whole.created) + 1
    assert all(create.hparams in values for create in whole.created)
    with pytest.raises(
        ConfigError, match="a grid tries each of its points once, and has no more; enqueue other"
    ):
        search(config, space=GRID).extend(1)


def test_a_search_with_a_limit_keeps_to_it_when_it_is_extended() -> None:
    searcher = search(KINDS["random"])
    searcher.start()
    assert searcher.extend(5) == []
    for trial in range(7):
        searcher.exited(trial, Exit.COMPLETED)
    # three at a time: 7, 8 and 9 run
    assert [type(each) for each in searcher.exited(7, Exit.COMPLETED)] == [Create, Train]
    assert searcher.extend(2) == []


@pytest.mark.parametrize("kind", ["async_halving", "stopping"])
def test_extended_halving_runs_as_many_trials_as_allowed(kind: str) -> None:
    config = AsyncHalving(
        metric="loss",
        num_rungs=1,
        max_trials=1,
        max_length=LENGTH,
        max_concurrent_trials=3,
        stop_once=kind == "stopping",
    )
    searcher = search(config)
    searcher.start()
    assert [type(each) for each in searcher.extend(9)] == [Create, Train] * 2


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Hyperband(metric="loss", max_length=LENGTH), "is its method's own, and it takes no more"),
        (
            Combined(metric="loss", schedule="hyperband", max_length=LENGTH),
            "is its method's own, and it takes no more",
        ),
        (
            Pbt(metric="loss", population_size=5, num_rounds=4, length_per_round=LENGTH),
            "is its method's own, and it takes no more",
        ),
    ],
)
def test_search_with_a_fixed_number_of_trials_is_not_extended(
    config: SearcherConfig, why: str
) -> None:
    searcher = search(config)
    searcher.start()
    with pytest.raises(ConfigError, match=why):
        searcher.extend(1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lrr": 1}, "there is no hyperparameter 'lrr'; did you mean 'lr'"),
        (
            {"width": 1},
            (
                "there is no hyperparameter 'width'; there are: lr, momentum, net.layers,"
                " optimizer, seed"
            ),
        ),
        ({"lr": 3}, "lr is 3, which is not in the space; give a number from 0.0001 to 1"),
        ({"lr": "high"}, "lr is 'high', which is not in the space"),
        (
            {"net.layers": 2.5},
            "net.layers is 2.5, which is not in the space; give a whole number from 1 to 9",
        ),
        (
            {"optimizer": "lion"},
            "optimizer is 'lion', which is not in the space; give one of sgd, adam",
        ),
        ({"seed": 2}, "seed is 2, which is not in the space; it is always 1"),
        (
            {"optimizer": "adam", "momentum": 0.5},
            "constraints allow no such trial; give other values",
        ),
        (
            {"lr": 0.5, "net.layers": 9},
            "lr=0.5, net.layers=9: conditions and searcher.constraints allow no such",
        ),
    ],
)
def test_hyperparameters_outside_the_space_are_refused(given: dict[str, Any], why: str) -> None:
    searcher = search(Random(metric="loss", max_trials=3, constraints=("net.layers * lr <= 4",)))
    searcher.start()
    with pytest.raises(ConfigError, match=why):
        searcher.extend(0, [given])


def test_conditional_hyperparameter_sets_its_condition() -> None:
    """What is left out is drawn so that the trial has what is given."""
    for seed in range(8):
        searcher = search(Random(metric="loss", max_trials=1), seed)
        searcher.start()
        create, _ = searcher.extend(0, [{"momentum": 0.25}])
        assert isinstance(create, Create)
        assert create.hparams["optimizer"] == "sgd"
        assert create.hparams["momentum"] == 0.25


def test_a_sampler_that_learns_takes_note_of_what_is_enqueued() -> None:
    """Copies of an enqueued trial that is the best by far come after it."""
    searcher = search(KINDS["evolution"])
    play = Play(searcher, 3).finish()
    extend(play, 0, {"lr": 0.01})
    state: Any = searcher.state()
    points = dict(state["searcher"]["sampler"]["points"])
    assert points[len(play.created) - 1][0] == pytest.approx(0.5)


def test_a_condition_to_stop_takes_the_place_of_an_earlier_one() -> None:
    searcher = search(
        Random(metric="loss", max_trials=4, max_length=LENGTH, stop_when="loss < 0.5")
    )
    searcher.start()
    searcher.stop_at("loss < 0.1")
    kept = search(Random(metric="loss", max_trials=4, max_length=LENGTH, stop_when="loss < 0.5"))
    kept.restore(json.loads(json.dumps(searcher.state())))
    for each in (searcher, kept):
        assert each.validated(0, 3, {"loss": 0.3}) == []
        assert each.validated(0, 4, {"loss": 0.05}) == [Close(trial) for trial in range(4)]
        with pytest.raises(
            ConfigError, match="the search has stopped, as its budget or condition says"
        ):
            each.extend(1)


@pytest.mark.parametrize(
    ("condition", "why"),
    [("loss <", "is 'loss <': it cannot be read"), ("1 < 2", "which names no metric; name one")],
)
def test_a_condition_that_is_none_is_refused(condition: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        search(KINDS["random"]).stop_at(condition)


def test_completed_search_continues_and_replays_equally() -> None:
    config = Random(metric="loss", max_trials=1, max_length=LENGTH)
    steered = SearchSteered(add_trials=1, enqueue=({"lr": 0.5},), max_slots=2)
    events: list[SearchEvent] = [
        SearchStarted(),
        TrialValidated(0, 9, 9, {"loss": 1.0}),
        TrialExited(0, Exit.COMPLETED),
        steered,
    ]
    events = [decode_event(encode_event(event).encode()) for event in events]
    assert events[-1] == steered
    found = JournaledSearch.replayed(search(config), events[:-1])
    assert found.over == Shutdown()
    found.apply(events[-1])
    assert found.over is None
    assert found.max_slots == 2
    assert found.plans[1].hparams["lr"] == 0.5
    assert [plan.runnable for plan in found.plans.values()] == [False, True, True]
    assert JournaledSearch.replayed(search(config), events).plans == found.plans

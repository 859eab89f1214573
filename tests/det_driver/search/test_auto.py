"""What `name: auto` chooses, and what it says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from det_core.config import (
    Auto,
    Categorical,
    Double,
    ExperimentConfig,
    Hyperband,
    Length,
    Random,
    SearcherConfig,
    from_json,
    parse,
    to_json,
)
from det_driver.search import as_named, choose, make
from det_testing._search_play import Play

SPACE: dict[str, Any] = {"x": Double(minval=0, maxval=1)}
SMALL: dict[str, Any] = {
    "x": Double(minval=0, maxval=1, step=0.25),
    "k": Categorical(vals=("a", "b")),
}


def auto(trials: int, length: int | None = 27, **keys: Any) -> Auto:
    return Auto(
        metric="loss", max_trials=trials, max_length=length and Length("epochs", length), **keys
    )


@pytest.mark.parametrize(
    ("config", "space", "said"),
    [
        (
            auto(100),
            SPACE,
            (
                "sampler evolution, schedule async_halving (4 rungs, divisor 2.5): it learns after"
                " the first 40 of 100 trials; poor trials need not train all 27 epochs"
            ),
        ),
        (
            auto(20, 4),
            SPACE,
            (
                "sampler random, schedule async_halving (2 rungs, divisor 2.5): 20 trials are too"
                " few to learn from; poor trials need not train all 4 epochs"
            ),
        ),
        (
            auto(50, None),
            SPACE,
            (
                "sampler evolution, schedule full: it learns after the first 40 of 50 trials;"
                " without max_length, each trial ends by itself"
            ),
        ),
        (
            auto(10, 2),
            SMALL,
            (
                "sampler grid, schedule full: the space has no more than 10 choices; 2 epochs are"
                " too short to stop trials early"
            ),
        ),
        (
            auto(8, 2, constraints=("x > 0.5 or k == 'a'",)),
            SMALL,
            (
                "sampler grid, schedule full: the space has no more than 8 choices; 2 epochs are"
                " too short to stop trials early"
            ),
        ),
        (
            auto(3),
            SPACE,
            (
                "sampler random, schedule full: 3 trials are too few to learn from; of 3 trials"
                " none is stopped early"
            ),
        ),
    ],
)
def test_it_chooses_and_says_why(config: Auto, space: dict[str, Any], said: str) -> None:
    choice = choose(config, space)
    assert str(choice) == said
    play = Play(make(config, space, 3), 3).finish()
    assert play.operations == Play(make(choice.config, space, 3), 3).finish().operations
    assert len(play.created) <= config.max_trials


@pytest.mark.parametrize("trials", [3, 4, 7, 8, 9, 16, 26, 27, 60])
def test_its_best_trial_trains_all_of_the_length(trials: int) -> None:
    config = auto(trials)
    play = Play(make(config, SPACE, 3), 3).finish()
    assert max(play.trained.values()) == config.max_length.n


def test_an_experiment_keeps_the_choice_that_it_began_with() -> None:
    """A stored configuration without a version of the choice is of an earlier det."""
    begun = ExperimentConfig(searcher=auto(100))
    stored = json.loads(to_json(begun))
    assert stored["searcher"]["choice"] == 2
    assert from_json(json.dumps(stored)).searcher == begun.searcher
    del stored["searcher"]["choice"]
    earlier = from_json(json.dumps(stored)).searcher
    assert isinstance(earlier, Auto)
    assert "(3 rungs, divisor 3)" in str(choose(earlier, SPACE))
    play = Play(make(earlier, SPACE, 3), 3).finish()
    assert {*play.trained.values()} == {3, 9, 27}


@pytest.mark.parametrize("schedule", ["full", "async_halving", "adaptive_asha", "hyperband"])
def test_a_pair_of_random_is_the_searcher_of_that_name(schedule: str) -> None:
    """Its trials, and when each trains how long."""
    section: dict[str, Any] = {
        "sampler": "random",
        "schedule": schedule,
        "metric": "loss",
        "max_length": {"epochs": 9},
    }
    section |= {"max_concurrent_trials": 0} if schedule == "hyperband" else {"max_trials": 30}
    pair = parse({"searcher": section}).config.searcher
    named = as_named(pair, SPACE)
    assert isinstance(named, SearcherConfig)
    assert named.name == {"full": "random"}.get(schedule, schedule)
    ours, theirs = (Play(make(each, SPACE, 4), 4).finish() for each in (pair, named))
    if isinstance(named, Hyperband):
        # one bracket after the other
        assert sorted(ours.trained.values()) == sorted(theirs.trained.values())
    else:
        assert ours.operations == theirs.operations
    assert as_named(named, SPACE) is named
    assert as_named(auto(3), SPACE) == Random(
        metric="loss", max_trials=3, max_length=Length("epochs", 27)
    )

"""What holds for any settings and any order of events."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_core.config import (
    AdaptiveAsha,
    AsyncHalving,
    Categorical,
    Double,
    ExploreFunction,
    Grid,
    Hyperband,
    Int,
    Length,
    Pbt,
    Random,
    ReplaceFunction,
    Single,
)
from det_driver.search import Create, Exit, Train, make
from det_driver.search._hyperband import hyperband_brackets
from det_testing._search_play import Play, give

SPACE = {
    "lr": Double(minval=0, maxval=1, count=4),
    "net": {"n": Int(minval=1, maxval=3, count=3), "k": Categorical(vals=(1, 2))},
}
LONGEST = 200
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

common = {"metric": st.just("loss"), "smaller_is_better": st.booleans()}
at_once = {"max_concurrent_trials": st.integers(0, 12)}
lengths = st.integers(1, LONGEST).map(lambda n: Length("batches", n))
divisors = st.floats(1.5, 8) | st.sampled_from([2.0, 3.0, 4.0])
trials = {"max_trials": st.integers(1, 40)}


def ashas(struct: Any, **extra: Any) -> st.SearchStrategy[Any]:
    shared = common | at_once | trials | {"divisor": divisors} | extra
    by_time = st.builds(
        struct, **shared, max_time=st.integers(1, LONGEST), time_metric=st.just("t")
    )
    return by_time | st.builds(
        struct, **shared, max_length=lengths, stop_once=st.booleans() | st.none()
    )


CONFIGS = st.one_of(
    st.builds(Single, **common, max_length=lengths),
    st.builds(Random, **common, **at_once, **trials, max_length=lengths),
    st.builds(Grid, **common, **at_once, max_length=lengths),
    ashas(AsyncHalving, num_rungs=st.integers(1, 6)),
    ashas(
        AdaptiveAsha,
        max_rungs=st.integers(1, 6),
        mode=st.sampled_from(["conservative", "standard", "aggressive"]),
        bracket_rungs=st.lists(st.integers(1, 5), max_size=4).map(tuple),
    ),
    st.builds(
        Hyperband,
        **common,
        max_length=st.integers(1, 30).map(lambda n: Length("epochs", n)),
        divisor=divisors,
    ),
    st.builds(
        Pbt,
        **common,
        population_size=st.integers(1, 9),
        num_rounds=st.integers(1, 5),
        length_per_round=lengths,
        replace_function=st.builds(ReplaceFunction, truncate_fraction=st.floats(0, 0.5)),
        explore_function=st.builds(ExploreFunction),
    ),
)


def trials_allowed(config: Any) -> int:
    match config:
        case Single():
            return 1
        case Grid():
            return 24
        case Hyperband(max_length=length, divisor=divisor):
            return sum(bracket[0].trials for bracket in hyperband_brackets(length.n, divisor))
        case Pbt():
            copies = int(config.replace_function.truncate_fraction * config.population_size)
            return config.population_size + copies * (config.num_rounds - 1)
        case _:
            return config.max_trials


def longest(config: Any) -> int:
    if isinstance(config, Pbt):
        return config.length_per_round.n * config.num_rounds
    return getattr(config, "max_time", None) or config.max_length.n


@QUICK
@given(
    CONFIGS,
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.3]),
)
def test_budgets_are_kept_and_every_trial_is_closed(
    config: Any, seed: int, faults: float, other: float
) -> None:
    """The play checks the contract (lengths grow, nothing after a close) at each step."""
    play = Play(make(config, SPACE, seed), seed, faults=faults, nan=other, early=other).finish()
    replaced = sum(event[0] == "exited" and event[2] is Exit.INVALID_HP for event in play.events)
    assert len(play.created) <= trials_allowed(config) + replaced
    if not faults:
        assert len(play.created) == trials_allowed(config)
    assert all(length <= longest(config) for length in play.trained.values())
    assert not play.ledger.open
    assert play.ledger.ended == play.ledger.created


@QUICK
@given(CONFIGS, st.integers(0, 2**32 - 1), st.data())
def test_replaying_or_restoring_any_prefix_gives_the_same_state(
    config: Any, seed: int, data: Any
) -> None:
    play = Play(make(config, SPACE, seed), seed, faults=0.1, nan=0.1, early=0.2)
    states = []
    while play.step():
        states.append(json.dumps(play.searcher.state(), allow_nan=False))
    moment = data.draw(st.integers(0, len(states) - 1))
    replayed, restored = make(config, SPACE, seed), make(config, SPACE, seed)
    for event in play.events[: moment + 1]:
        give(replayed, event)
    assert json.dumps(replayed.state()) == states[moment]
    restored.restore(json.loads(states[moment]))
    for event, answer in list(zip(play.events, play.operations, strict=True))[moment + 1 :]:
        assert give(restored, event) == answer
    assert json.dumps(restored.state()) == states[-1]


@QUICK
@given(
    ashas(AsyncHalving, num_rungs=st.integers(1, 5)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.2]),
)
def test_a_bracket_of_asha_keeps_its_concurrency_and_never_idles(
    config: Any, seed: int, faults: float
) -> None:
    """While trials are left to make, as many are under way as at the start."""
    play = Play(make(config, SPACE, seed), seed, faults=faults)
    under_way: set[int] = set()
    while play.step():
        event, operations = play.events[-1], play.operations[-1]
        if event[0] != "start":
            under_way.discard(event[1])
        under_way |= {operation.trial for operation in operations if isinstance(operation, Train)}
        if event[0] == "start":
            first = len(under_way)
        replaced = sum(e[0] == "exited" and e[2] is Exit.INVALID_HP for e in play.events)
        assert len(under_way) <= first
        if len(play.created) < config.max_trials + replaced:
            assert len(under_way) == first


@QUICK
@given(CONFIGS, st.integers(0, 2**32 - 1))
def test_hyperparameters_stay_within_their_bounds(config: Any, seed: int) -> None:
    play = Play(make(config, SPACE, seed), seed).finish()
    for create in play.created:
        assert isinstance(create, Create)
        assert 0 <= create.hparams["lr"] <= 1
        assert create.hparams["net"]["n"] in (1, 2, 3)
        assert create.hparams["net"]["k"] in (1, 2)

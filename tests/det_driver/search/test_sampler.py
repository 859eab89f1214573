"""What samplers propose, over every schedule that takes one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_core.config import AdaptiveAsha, AsyncHalving, Categorical, Const, Double, Int, Length, Log
from det_driver.search import Create, Exit, RandomState, Searcher, Train, make
from det_driver.search._sampler import Evolution, UnitCube
from det_testing._search_play import Play, give

SPACE: dict[str, Any] = {
    "dropout": Double(minval=0, maxval=0.7),
    "fixed": Const([1, 2]),
    "lr": Log(minval=-5, maxval=0),
    "net": {"hidden": Int(minval=8, maxval=512), "kind": Categorical(vals=("a", "b", ["c"]))},
}
LENGTH = Length("epochs", 27)
STOPPING = {"max_time": 27, "time_metric": "epochs"}
PAIRS: dict[str, Callable[[], Any]] = {
    "one rung": lambda: AsyncHalving(
        metric="loss", sampler="evolution", num_rungs=1, max_trials=60, max_length=LENGTH
    ),
    "async_halving": lambda: AsyncHalving(
        metric="loss", sampler="evolution", num_rungs=3, max_trials=70, max_length=LENGTH
    ),
    "async_halving, stopping": lambda: AsyncHalving(
        metric="loss", sampler="evolution", num_rungs=3, max_trials=70, **STOPPING
    ),
    "adaptive_asha": lambda: AdaptiveAsha(
        metric="loss", sampler="evolution", max_trials=70, max_length=LENGTH
    ),
    "adaptive_asha, stopping": lambda: AdaptiveAsha(
        metric="loss", sampler="evolution", max_trials=70, **STOPPING
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    order=st.integers(0, 1000),
    share=st.floats(0, 1),
    faults=st.sampled_from([0.0, 0.1, 0.3]),
    nan=st.sampled_from([0.0, 0.2]),
    early=st.sampled_from([0.0, 0.3]),
)
def test_the_same_events_give_the_same_proposals(
    pair: str, seed: int, order: int, share: float, faults: float, nan: float, early: float
) -> None:
    """From the beginning, and from a state that was kept at any moment."""
    play = Play(make(PAIRS[pair](), SPACE, seed), order, faults=faults, nan=nan, early=early)
    kept = []
    while play.step():
        kept.append(json.dumps(play.searcher.state(), allow_nan=False))
    moment = min(int(share * len(kept)), len(kept) - 1)
    again, restored = (make(PAIRS[pair](), SPACE, seed) for _ in range(2))
    restored.restore(json.loads(kept[moment]))
    for number, (event, answer) in enumerate(zip(play.events, play.operations, strict=True)):
        assert give(again, event) == answer
        if number > moment:
            assert give(restored, event) == answer


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_every_point_of_the_cube_is_inside_of_the_ranges(point: list[float]) -> None:
    hparams = UnitCube(SPACE).hparams(point)
    assert 0 <= hparams["dropout"] <= 0.7
    assert 1e-5 * 0.999 <= hparams["lr"] <= 1
    assert hparams["fixed"] == [1, 2]
    assert hparams["net"]["hidden"] in range(8, 513)
    assert hparams["net"]["kind"] in ("a", "b", ["c"])


def test_values_of_one_trial_are_not_those_of_another() -> None:
    """A script may change a list that it was given."""
    cube = UnitCube(SPACE)
    first, second = (cube.hparams([0.5, 0.5, 0.5, 0.99]) for _ in range(2))
    first["net"]["kind"].append("d")
    first["fixed"].append(3)
    assert second["net"]["kind"] == ["c"]
    assert second["fixed"] == [1, 2]


def proposals(sampler: Evolution, rng: RandomState, first: int, count: int) -> list[dict[str, Any]]:
    return [sampler.propose(trial, rng) for trial in range(first, first + count)]


def test_most_proposals_are_near_the_best_after_the_beginning() -> None:
    """Of trials that trained equally long; the first forty are random."""
    sampler, rng = Evolution({"x": Double(minval=0, maxval=1)}), RandomState(3)
    for trial, hparams in enumerate(proposals(sampler, rng, 0, 40)):
        sampler.validated(trial, 10, abs(hparams["x"] - 0.3))
        sampler.exited(trial, Exit.COMPLETED)
    after = [hparams["x"] for hparams in proposals(sampler, rng, 40, 300)]
    near = sum(abs(x - 0.3) < 0.25 for x in after) / len(after)
    # half of the random fifth falls there by chance
    assert 0.8 < near < 0.97
    assert len(set(after)) == 300


def test_the_first_forty_trials_are_those_of_a_random_search() -> None:
    """Whatever they report; then the two part."""
    config = AsyncHalving(
        metric="loss", num_rungs=1, max_trials=60, max_length=LENGTH, max_concurrent_trials=2
    )
    ours = Play(make(msgspec.structs.replace(config, sampler="evolution"), SPACE, 5)).finish()
    theirs = Play(make(config, SPACE, 5)).finish()
    assert ours.created[:40] == theirs.created[:40]
    assert all(a != b for a, b in zip(ours.created[41:], theirs.created[41:], strict=True))


def test_a_short_training_that_looks_good_is_no_parent() -> None:
    """Where enough have trained longer."""
    sampler, rng = Evolution({"x": Double(minval=0, maxval=1)}), RandomState(3)
    proposals(sampler, rng, 0, 30)
    for trial in range(30):
        sampler.validated(trial, 1, trial / 100)
    for trial in range(20, 26):
        sampler.validated(trial, 9, float(trial))
    assert sampler._parents() == [20, 21]
    sampler.validated(0, 4, -5.0)
    assert sampler._parents() == [20, 21]


def test_an_invalid_trial_is_no_parent() -> None:
    sampler, rng = Evolution(SPACE), RandomState(1)
    proposals(sampler, rng, 0, 8)
    for trial in range(8):
        sampler.validated(trial, 5, float(trial))
    assert sampler._parents() == [0, 1]
    sampler.exited(0, Exit.INVALID_HP)
    assert sampler._parents() == [1, 2]


def test_a_search_without_ranges_proposes_its_constants() -> None:
    sampler, rng = Evolution({"fixed": Const(1)}), RandomState(0)
    for trial in range(50):
        assert sampler.propose(trial, rng) == {"fixed": 1}
        sampler.validated(trial, 1, 0.0)


@pytest.mark.slow
def test_ten_thousand_trials_are_decided_quickly_and_kept_small() -> None:
    """Twenty milliseconds for a decision, ten megabytes of state.

    Also where all trials wait for a promotion.

    One decision in a thousand may take longer: the collector of garbage runs in it.
    """
    space = {f"x{i}": Double(minval=0, maxval=1) for i in range(10)}
    config = AsyncHalving(
        metric="loss",
        sampler="evolution",
        num_rungs=4,
        max_trials=10_000,
        max_length=Length("epochs", 64),
        max_concurrent_trials=16,
    )
    searcher = make(config, space, 0)
    due, created, seconds = [], {}, []

    def obey(operations: list[Any]) -> None:
        for operation in operations:
            if isinstance(operation, Create):
                created[operation.trial] = operation.hparams
            elif isinstance(operation, Train):
                due.append((operation.trial, operation.until))

    obey(searcher.start())
    while due and len(created) < 10_000:
        trial, until = due.pop(0)
        loss = math.dist(created[trial].values(), [0.4] * 10)
        began = time.process_time()
        operations = searcher.validated(trial, until, {"loss": loss})
        seconds.append(time.process_time() - began)
        obey(operations)
    assert len(created) == 10_000
    assert sorted(seconds)[-len(seconds) // 1000] < 0.02
    assert len(json.dumps(searcher.state())) < 10_000_000
    random = RandomState(1)
    luck = min(math.dist([random.random() for _ in range(10)], [0.4] * 10) for _ in range(10_000))
    assert min(math.dist(hparams.values(), [0.4] * 10) for hparams in created.values()) < luck / 2


def test_a_searcher_with_a_sampler_says_which_metric_it_reads() -> None:
    searcher: Searcher = make(PAIRS["one rung"](), SPACE, 0)
    assert searcher.metric == "loss"

"""Searches that end when enough was trained, or when a trial is good enough."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_core.config import (
    AsyncHalving,
    Auto,
    Combined,
    Double,
    Hyperband,
    Length,
    Pbt,
    Random,
    SearcherConfig,
)
from det_core.errors import ConfigError, MetricError
from det_driver.driver._search import (
    JournaledSearch,
    SearchStarted,
    SearchStopped,
    TrialExited,
    decode_event,
    encode_event,
)
from det_driver.search import Close, Exit, Searcher, Shutdown, made, make
from det_testing._search_play import Play, give

SPACE: dict[str, Any] = {"x": Double(minval=0, maxval=1)}
LENGTH = Length("epochs", 9)
KINDS: dict[str, Any] = {
    "random": lambda **k: Random(metric="loss", max_trials=30, max_length=LENGTH, **k),
    "async_halving": lambda **k: AsyncHalving(
        metric="loss", num_rungs=3, max_trials=30, max_length=LENGTH, **k
    ),
    "hyperband": lambda **k: Hyperband(metric="loss", max_length=LENGTH, **k),
    "pbt": lambda **k: Pbt(
        metric="loss", population_size=5, num_rounds=4, length_per_round=Length("epochs", 2), **k
    ),
    "evolution": lambda **k: Combined(
        metric="loss",
        sampler="evolution",
        schedule="adaptive_asha",
        max_trials=60,
        max_length=LENGTH,
        **k,
    ),
}


def search(config: SearcherConfig, seed: int = 0) -> Searcher:
    return made(config, SPACE, seed, make)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 2**31),
    st.floats(0, 1),
    st.sampled_from([{"max_epochs_total": 40}, {"stop_when": "loss < 0.2"}]),
)
def test_a_search_stops_and_repeats_itself(
    kind: str, seed: int, share: float, keys: dict[str, Any]
) -> None:
    """From the beginning, and from a state that was kept at any moment."""
    play = Play(search(KINDS[kind](**keys), seed), seed, faults=0.1, early=0.2).finish()
    again, restored = (search(KINDS[kind](**keys), seed) for _ in range(2))
    moment = min(int(share * len(play.events)), len(play.events) - 1)
    for number, (event, answer) in enumerate(zip(play.events, play.operations, strict=True)):
        assert give(again, event) == answer
        if number > moment:
            assert give(restored, event) == answer
        if number == moment:
            restored.restore(json.loads(json.dumps(again.state(), allow_nan=False)))
    assert again.progress({}) == 1.0


def test_no_more_is_trained_than_the_budget_and_what_runs() -> None:
    """A trial that is under way when it is spent is closed, and none begins."""
    play = Play(search(KINDS["random"](max_epochs_total=60, max_concurrent_trials=3)), 1)
    play.finish()
    assert sum(play.trained.values()) == 63
    assert play.searcher.stopped
    assert play.over == Shutdown()


def test_a_validation_that_is_good_enough_ends_the_search() -> None:
    searcher = search(
        KINDS["random"](stop_when="accuracy >= 0.9 and loss < 1", max_concurrent_trials=3)
    )
    searcher.start()
    assert searcher.validated(0, 4, {"loss": 0.5, "accuracy": 0.8}) == []
    # a metric that is not reported says nothing
    assert searcher.validated(0, 5, {"loss": 0.5}) == []
    assert searcher.validated(1, 5, {"loss": 0.5, "accuracy": 0.9}) == [
        Close(0),
        Close(1),
        Close(2),
    ]
    assert searcher.exited(0, Exit.COMPLETED) == searcher.exited(1, Exit.COMPLETED) == []
    assert searcher.exited(2, Exit.COMPLETED) == [Shutdown()]


def test_a_condition_on_a_metric_that_is_no_number_is_a_sentence() -> None:
    searcher = search(KINDS["random"](stop_when="phase > 3"))
    searcher.start()
    with pytest.raises(MetricError, match=r"searcher\.stop_when is 'phase > 3'"):
        searcher.validated(0, 1, {"loss": 0.5, "phase": "a"})  # type: ignore[dict-item]


def test_a_total_in_epochs_needs_lengths_in_epochs() -> None:
    config = Random(
        metric="loss", max_trials=3, max_length=Length("batches", 100), max_epochs_total=4
    )
    with pytest.raises(
        ConfigError,
        match="max_epochs_total is 4, and lengths are in batches; give max_length in epochs",
    ):
        search(config)


def test_a_journal_in_which_time_was_up_says_it_again() -> None:
    """The driver's clock decides when; the searcher has none."""
    config = KINDS["async_halving"](max_hours=1.0, max_concurrent_trials=2)
    events: list[Any] = [
        SearchStarted(),
        SearchStopped(),
        TrialExited(0, Exit.COMPLETED),
        TrialExited(1, Exit.COMPLETED),
    ]
    first = JournaledSearch.replayed(search(config), events)
    second = JournaledSearch.replayed(
        search(config), [decode_event(encode_event(each).encode()) for each in events]
    )
    for each in (first, second):
        assert each.over == Shutdown()
        assert each.searcher.stopped
        assert all(plan.closed for plan in each.plans.values())


def test_auto_takes_a_time_in_place_of_a_number_of_trials() -> None:
    assert search(Auto(metric="loss", max_hours=2.0, max_length=LENGTH)).start()
    with pytest.raises(
        ConfigError,
        match=r"searcher\.max_trials is missing; give the number of trials to make, or max_hours",
    ):
        search(Auto(metric="loss", max_length=LENGTH))

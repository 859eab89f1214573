"""Searches that make further trials where slots are idle while their last trials train."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_core.config import AdaptiveAsha, AsyncHalving, Combined, Double, Length, SearcherConfig
from det_core.errors import ConfigError
from det_driver.driver._search import SearchFilled, decode_event, encode_event
from det_driver.search import Create, Exit, Searcher, made, make
from det_testing._search_play import Play, give

SPACE: dict[str, Any] = {"x": Double(minval=0, maxval=1)}
LENGTH = Length("epochs", 9)
COMMON: dict[str, Any] = {
    "metric": "loss",
    "max_trials": 12,
    "max_length": LENGTH,
    "max_concurrent_trials": 4,
}
KINDS: dict[str, Any] = {
    "async_halving": lambda **k: AsyncHalving(num_rungs=3, divisor=3, **COMMON, **k),
    "stopping": lambda **k: AsyncHalving(num_rungs=3, divisor=3, stop_once=True, **COMMON, **k),
    "adaptive_asha": lambda **k: AdaptiveAsha(**COMMON, **k),
    "evolution": lambda **k: Combined(sampler="evolution", schedule="adaptive_asha", **COMMON, **k),
}


def search(config: SearcherConfig, seed: int) -> Searcher:
    return made(config, SPACE, seed, make)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 1))
def test_idle_slots_get_trials_in_a_reproducible_search(kind: str, seed: int, share: float) -> None:
    """Whenever fewer than four trials have something to do, the missing ones are asked for."""
    play = Play(
        search(KINDS[kind](use_idle_slots=True), seed), seed, faults=0.05, reasons=(Exit.ERRORED,)
    )
    filled = 0
    while play.step():
        assert len(play.events) < 2000
        if play.searcher.may_fill and (idle := 4 - len(play._due)) > 0:
            play._give(("fill", idle))
            filled += sum(isinstance(each, Create) for each in play.operations[-1])
    assert play.over is not None
    assert len(play.created) == 12 + filled
    assert play.searcher.progress({}) == 1.0
    again, restored = (search(KINDS[kind](use_idle_slots=True), seed) for _ in range(2))
    moment = int(share * (len(play.events) - 1))
    for number, (event, answer) in enumerate(zip(play.events, play.operations, strict=True)):
        assert give(again, event) == answer
        if number > moment:
            assert give(restored, event) == answer
        if number == moment:
            restored.restore(json.loads(json.dumps(again.state(), allow_nan=False)))


def test_further_trials_end_with_the_last_planned_one() -> None:
    """The promotions of the twelve are those of a search without them."""
    plain = Play(search(KINDS["async_halving"](), 3), 1).finish()
    filling = search(KINDS["async_halving"](use_idle_slots=True), 3)
    open_now: set[int] = set()
    added: set[int] = set()
    for event, answer in zip(plain.events, plain.operations, strict=True):
        given = give(filling, event)
        closed = {each.trial for each in given if type(each).__name__ == "Close"} & added
        ours = [each for each in given if getattr(each, "trial", None) not in added]
        assert [each for each in ours if type(each).__name__ != "Shutdown"] == [
            each for each in answer if type(each).__name__ != "Shutdown"
        ]
        open_now -= closed
        if filling.may_fill:
            made_now = {
                each.trial for each in give(filling, ("fill", 1)) if isinstance(each, Create)
            }
            added |= made_now
            open_now |= made_now
    assert added
    assert open_now == set()
    for trial in sorted(added):
        over = filling.exited(trial, Exit.COMPLETED)
    assert [type(each).__name__ for each in over] == ["Shutdown"]


def test_without_the_setting_no_trial_is_added() -> None:
    play = Play(search(KINDS["adaptive_asha"](), 1), 1)
    while play.step():
        assert not play.searcher.may_fill
        assert play.searcher.fill(3) == []


def test_a_schedule_that_stops_no_trial_early_refuses_it() -> None:
    with pytest.raises(
        ConfigError, match="the schedule full stops no trial early; take the schedule async_halving"
    ):
        search(Combined(sampler="random", use_idle_slots=True, **COMMON), 1)


def test_the_event_is_read_as_it_was_written() -> None:
    assert decode_event(encode_event(SearchFilled(3)).encode()) == SearchFilled(3)

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.config import AdaptiveAsha, Double, Length, Log, Pbt, Random, Single
from det_driver.search import Searcher, Segment, make, simulate

SPACE = {"lr": Log(minval=-5, maxval=0), "dropout": Double(minval=0, maxval=0.7)}


def asha(
    trials: int, *, stop: bool = False, length: int = 900, at_once: int = 5, divisor: float = 3
) -> Searcher:
    lengths: dict[str, Any] = {"max_length": Length("batches", length)}
    if stop:
        lengths = {"max_time": length, "time_metric": "batches"}
    config = AdaptiveAsha(
        metric="loss", max_trials=trials, divisor=divisor, max_concurrent_trials=at_once, **lengths
    )
    return make(config, SPACE, 0)


def random_search(trials: int, at_once: int = 0) -> Searcher:
    config = Random(
        metric="loss",
        max_trials=trials,
        max_concurrent_trials=at_once,
        max_length=Length("epochs", 10),
    )
    return make(config, SPACE, 0)


def test_it_counts_trials_by_the_length_that_they_reach() -> None:
    """For one order of results, the counts that Determined's own preview gives for this search."""
    simulation = simulate(asha(10, stop=True), seed=18)
    assert simulation.reached == {100: 5, 300: 3, 900: 2}
    assert simulation.trials == 10
    assert simulation.units == 5 * 100 + 3 * 300 + 2 * 900


def test_trials_take_the_slots_in_turn() -> None:
    simulation = simulate(random_search(5), slots=2)
    assert list(simulation.segments()) == [
        Segment(trial=0, slot=0, start=0, end=10),
        Segment(trial=1, slot=1, start=0, end=10),
        Segment(trial=2, slot=0, start=10, end=20),
        Segment(trial=3, slot=1, start=10, end=20),
        Segment(trial=4, slot=0, start=20, end=30),
    ]
    assert (simulation.makespan, simulation.slots, simulation.occupancy) == (
        30,
        2,
        pytest.approx(50 / 60),
    )


@pytest.mark.parametrize(("slots", "used", "makespan"), [(None, 5, 10), (1, 1, 50), (9, 5, 10)])
def test_it_uses_as_many_slots_as_there_are_and_as_it_needs(
    slots: int | None, used: int, makespan: int
) -> None:
    simulation = simulate(random_search(5), slots=slots)
    assert (simulation.slots, simulation.makespan) == (used, makespan)


def test_the_searcher_limits_what_runs_at_once() -> None:
    assert simulate(random_search(5, at_once=2)).slots == 2


def test_a_trial_that_goes_on_keeps_its_slot() -> None:
    config = Pbt(
        metric="loss", population_size=2, num_rounds=3, length_per_round=Length("epochs", 10)
    )
    segments = list(simulate(make(config, SPACE, 0)).segments())
    for trial in range(2):
        assert len({segment.slot for segment in segments if segment.trial == trial}) == 1


def test_a_trial_without_a_length_takes_one_unit() -> None:
    simulation = simulate(make(Single(metric="loss"), SPACE, 0))
    assert (simulation.reached, simulation.units, simulation.makespan) == ({None: 1}, 0, 1)


@given(st.integers(1, 60), st.integers(1, 9) | st.none(), st.booleans(), st.integers(0, 99))
def test_a_schedule_is_possible(trials: int, slots: int | None, stop: bool, seed: int) -> None:
    """No slot holds two trials, no trial two slots, no slot is idle while a trial waits for one."""
    simulation = simulate(asha(trials, stop=stop), slots=slots, seed=seed)
    segments = list(simulation.segments())
    for key in ("slot", "trial"):
        segments.sort(key=lambda s: (getattr(s, key), s.start))
        for first, second in itertools.pairwise(segments):
            assert getattr(first, key) != getattr(second, key) or first.end <= second.start
    assert sum(s.end - s.start for s in segments) == simulation.units
    assert sum(simulation.reached.values()) == simulation.trials == trials
    assert simulation.makespan == max(s.end for s in segments)
    if slots == 1:
        assert simulation.occupancy == 1


def test_the_same_seed_gives_the_same_simulation() -> None:
    first, second, other = (
        list(simulate(asha(40), slots=3, seed=seed).segments()) for seed in (1, 1, 2)
    )
    assert first == second != other


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True])
def test_an_event_costs_the_same_late_in_a_large_search(stop: bool) -> None:
    """The real measure takes longer than a test may.

    It is a thousand against a million trials within 1.5 times.
    """

    def seconds_per_event(trials: int) -> float:
        searcher = asha(trials, stop=stop, at_once=16, divisor=4)
        start = time.process_time()
        events = len(simulate(searcher, slots=8))
        return (time.process_time() - start) / events

    small = min(seconds_per_event(1000) for _ in range(5))
    assert seconds_per_event(50_000) < 2.5 * small

"""What a driver makes of a search.

Who is to train until when, who has reached which length, and that a journal says it again.
"""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.det_driver.driver.test_snapshots import event_of
from tests.det_driver.search.test_properties import CONFIGS, SPACE

from det_core import Plugins
from det_core.config import AdaptiveAsha, Custom, Double, ExperimentConfig, Length, Pbt, Random
from det_core.errors import DetError
from det_driver.driver._search import (
    AskedLength,
    JournaledSearch,
    SearchStarted,
    SearchView,
    TrialExited,
    TrialReopened,
    TrialValidated,
    decode_event,
    encode_event,
    lengths_asked,
    searcher_of,
    unit_of,
)
from det_driver.search import Close, Create, Exit, Operation, Searcher, Shutdown, Train, make
from det_testing._search_play import Play

LR = {"lr": Double(minval=0, maxval=1)}


def random_search(trials: int, at_once: int = 0, length: int | None = 10) -> Searcher:
    long = None if length is None else Length("batches", length)
    return make(
        Random(metric="loss", max_trials=trials, max_concurrent_trials=at_once, max_length=long),
        LR,
        0,
    )


def begun(searcher: Searcher) -> JournaledSearch:
    return JournaledSearch.replayed(searcher, [SearchStarted()])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGS, st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2]))
def test_plans_and_rungs_match_operations_and_events(config: Any, seed: int, faults: float) -> None:
    """Counted anew, naively, after each event.

    And the events as the journal has them make the same search.
    """
    reasons = tuple(reason for reason in Exit if reason is not Exit.CANCELED)
    play = Play(make(config, SPACE, seed), seed, faults=faults, early=0.2, reasons=reasons)
    search, events = JournaledSearch(make(config, SPACE, seed)), []
    untils: dict[int, int | None] = {}
    trains, closed, ended, reached = set[int](), set[int](), set[int](), list[int]()
    while len(events) < 60 and play.step():
        name, *arguments = play.events[-1]
        events.append(decode_event(encode_event(event_of(name, *arguments)).encode()))
        assert len(search.apply(events[-1])) == len(play.operations[-1])
        if name == "validated" and arguments[0] in trains and arguments[1] >= untils[arguments[0]]:
            trains.discard(arguments[0])
            reached.append(untils[arguments[0]])
        if name == "exited":
            ended.add(arguments[0])
            trains.discard(arguments[0])
        for operation in play.operations[-1]:
            match operation:
                case Create(trial=trial):
                    assert search.plans[trial].hparams == operation.hparams
                    assert (search.plans[trial].seed, search.plans[trial].source) == (
                        operation.seed,
                        operation.source,
                    )
                case Train(trial=trial, until=until):
                    untils[trial] = until
                    trains.add(trial)
                case Close(trial=trial):
                    closed.add(trial)
                    trains.discard(trial)
        assert {t for t, plan in search.plans.items() if plan.runnable} == trains
        assert {t for t, plan in search.plans.items() if plan.closed} == closed
        assert {t for t, plan in search.plans.items() if plan.exited} == ended
        assert {t: plan.until for t, plan in search.plans.items()} == untils
        assert [(rung.length, rung.reached, rung.under_way) for rung in search.rungs] == [
            (length, reached.count(length), sum(untils[trial] == length for trial in trains))
            for length in sorted(
                {until for until in [*untils.values(), *reached] if until is not None}
            )
            if length in {rung.length for rung in search.rungs}
        ]
        assert {rung.length for rung in search.rungs} >= {*filter(None, untils.values()), *reached}
        assert (search.over is not None) == (play.over is not None)
    again = JournaledSearch.replayed(make(config, SPACE, seed), events)
    assert (again.plans, again.rungs, again.over) == (search.plans, search.rungs, search.over)


def test_what_a_trial_reports_after_its_end_reaches_nobody() -> None:
    search = begun(random_search(2))
    search.apply(TrialExited(0, Exit.ERRORED))
    before = copy.deepcopy((search.plans, search.rungs))
    assert search.apply(TrialValidated(0, 10, 10, {"loss": 1.0})) == []
    assert (search.plans, search.rungs) == before


def test_trial_without_a_length_reaches_nothing_by_validating() -> None:
    search = begun(random_search(1, length=None))
    search.apply(TrialValidated(0, 10**6, 10**6, {"loss": 1.0}))
    assert search.plans[0].runnable
    assert search.rungs == ()
    search.apply(TrialExited(0, Exit.COMPLETED))
    assert search.over == Shutdown()


def test_canceled_search_creates_no_trial_and_ends_with_the_last() -> None:
    search = begun(random_search(9, at_once=2))
    assert search.apply(TrialExited(0, Exit.CANCELED)) == []
    assert set(search.plans) == {0, 1}
    search = begun(random_search(2))
    assert search.apply(TrialExited(0, Exit.CANCELED)) == []
    assert search.apply(TrialExited(1, Exit.CANCELED)) == [Shutdown(cancelled=True)]
    assert search.over == Shutdown(cancelled=True)


def test_a_trial_that_is_taken_up_again_never_ended() -> None:
    """Each time that it is, one of its ends is passed over; what was heard before counts."""
    ends = [
        TrialExited(0, Exit.ERRORED),
        TrialReopened(0),
        TrialExited(0, Exit.ERRORED),
        TrialReopened(0),
    ]
    search = JournaledSearch.replayed(random_search(1), [SearchStarted(), *ends])
    assert (search.plans[0].exited, search.plans[0].runnable, search.over) == (None, True, None)
    search = JournaledSearch.replayed(
        random_search(1), [SearchStarted(), *ends, TrialExited(0, Exit.ERRORED)]
    )
    assert search.plans[0].exited is Exit.ERRORED
    assert search.over == Shutdown(failed=True)
    assert search.apply(TrialReopened(0)) == []


class Answers(Searcher):
    """Answers each event with what it was given for it."""

    def __init__(self, *answers: list[Operation], told: float = 0.0) -> None:
        self.answers, self.told = list(answers), told

    def start(self) -> list[Operation]:
        return self.answers.pop(0)

    def validated(self, trial: Any, length: Any, metrics: Any) -> list[Operation]:
        return self.answers.pop(0)

    def exited(self, trial: Any, reason: Any) -> list[Operation]:
        return self.answers.pop(0)

    def progress(self, trial_progress: Any) -> float:
        return self.told


@pytest.mark.parametrize(("told", "progress"), [(2.0, 1.0), (-1.0, 0.0), (0.25, 0.25)])
def test_progress_is_never_below_nothing_nor_above_all(told: float, progress: float) -> None:
    assert JournaledSearch(Answers(told=told)).progress({}) == progress


def test_a_trial_that_was_only_made_has_nothing_to_train_yet() -> None:
    search = begun(Answers([Create(0, {}, 0)]))
    assert not search.plans[0].runnable


def test_closed_or_extended_trials_leave_the_old_rung() -> None:
    """They no longer count as under way to the old length."""
    first = [Create(0, {}, 0), Create(1, {}, 0), Train(0, 10), Train(1, 10)]
    search = begun(Answers(first, [Train(0, 30), Close(1)]))
    search.apply(TrialValidated(0, 5, 5, {}))
    assert [(rung.length, rung.reached, rung.under_way) for rung in search.rungs] == [
        (10, 0, 0),
        (30, 0, 1),
    ]


def test_what_a_trial_reports_after_its_end_is_not_even_told() -> None:
    search = begun(Answers([Create(0, {}, 0), Train(0, 10)], [], [Close(0)]))
    search.apply(TrialExited(0, Exit.ERRORED))
    assert search.apply(TrialValidated(0, 10, 10, {})) == []


@pytest.mark.parametrize("value", [math.inf, -math.inf, None, 0.5])
def test_the_journal_has_numbers_that_json_does_not_know(value: float | None) -> None:
    event = TrialValidated(0, 10, 10, {"loss": value})
    assert decode_event(encode_event(event).encode()) == event
    nan = decode_event(
        encode_event(TrialValidated(0, 10, 10, {"loss": math.nan, "other": value})).encode()
    )
    assert (math.isnan(nan.metrics["loss"]), nan.metrics["other"]) == (True, value)


def test_waiting_trials_are_neither_running_queued_nor_ended() -> None:
    view = SearchView(progress=0.5, trials=20, running=1, queued=2, ended=4, rungs=(), resting={})
    assert view.waiting == 13


@pytest.mark.parametrize(
    ("searcher", "unit"),
    [
        (Random(metric="loss", max_trials=1, max_length=Length("epochs", 3)), "epochs"),
        (
            Pbt(
                metric="loss",
                population_size=1,
                num_rounds=1,
                length_per_round=Length("records", 3),
            ),
            "records",
        ),
        (AdaptiveAsha(metric="loss", max_trials=1, max_time=3, time_metric="seconds"), "seconds"),
        (Random(metric="loss", max_trials=1), "batches"),
    ],
)
def test_lengths_are_in_the_unit_of_the_searchers_own(searcher: Any, unit: str) -> None:
    assert unit_of(ExperimentConfig(searcher=searcher)) == unit


def test_what_was_counted_before_a_snapshot_counts_on() -> None:
    search, other = begun(random_search(3)), JournaledSearch(random_search(3))
    search.apply(TrialValidated(0, 10, 10, {"loss": 1.0}))
    other.counted(search.rungs)
    assert [(rung.length, rung.reached, rung.under_way) for rung in other.rungs] == [(10, 1, 2)]


# What was asked of one trial


def validated(trial: int, length: int) -> TrialValidated:
    return TrialValidated(trial, length, 10 * length, {})


def test_requested_lengths_are_listed_with_their_batches() -> None:
    """The batches are those where the trial reached the length."""
    first = [Create(0, {}, 0), Create(1, {}, 0), Train(0, 10), Train(1, 10)]
    heard = [(0, 5), (1, 10), (0, 10), (0, 20), (0, 31), (0, 35), (0, 40)]
    answers = [[], [], [Train(0, 30)], [], [], [Train(0, 40)], [Train(0, 50)]]
    events = [SearchStarted(), *(validated(*each) for each in heard)]
    asked = lengths_asked(Answers(first, *answers), events, 0)
    assert asked == [
        AskedLength(10, 100),
        AskedLength(30, 310),
        AskedLength(40, 400),
        AskedLength(50, None),
    ]
    assert lengths_asked(Answers(first, *answers), events, 1) == [AskedLength(10, 100)]


def test_unreached_or_unlimited_length_has_no_position() -> None:
    begin, late = [Create(0, {}, 0), Train(0, None)], [Create(1, {}, 0), Train(1, 10)]
    events = [SearchStarted(), validated(0, 5), validated(0, 10**6), validated(1, 9)]
    assert lengths_asked(Answers(begin, late, [], []), events, 0) == [AskedLength(None, None)]
    assert lengths_asked(Answers(begin, late, [], []), events, 1) == [AskedLength(10, None)]


def test_created_closed_or_unknown_trial_has_no_requested_length() -> None:
    asked = [Create(0, {}, 0), Create(1, {}, 0), Train(1, 10), Close(1)]
    assert [lengths_asked(Answers(asked), [SearchStarted()], trial) for trial in (0, 1, 2)] == [
        [],
        [],
        [],
    ]


def test_reopened_trial_lists_its_length_once() -> None:
    events = [SearchStarted(), TrialExited(0, Exit.ERRORED), TrialReopened(0), validated(0, 10)]
    assert lengths_asked(random_search(1), events, 0) == [AskedLength(10, 100)]


# Which searcher it is


def test_an_experiment_without_a_searcher_is_told_to_have_one(tmp_path: Path) -> None:
    with pytest.raises(
        DetError, match=r"^the experiment has no searcher; add one to its configuration$"
    ):
        searcher_of(ExperimentConfig(), Plugins.installed(), tmp_path)


@pytest.mark.parametrize(("seed", "drawn_with"), [(None, 0), (0, 0), (7, 7)])
def test_search_draws_with_the_experiment_seed_or_0(
    tmp_path: Path, seed: int | None, drawn_with: int
) -> None:
    random = Random(metric="loss", max_trials=3, max_length=Length("batches", 10))
    reproducibility = msgspec.structs.replace(
        ExperimentConfig().reproducibility, experiment_seed=seed
    )
    config = ExperimentConfig(searcher=random, hyperparameters=LR, reproducibility=reproducibility)
    found = searcher_of(config, Plugins.installed(), tmp_path)
    assert found.start() == make(random, LR, drawn_with).start()
    assert str(tmp_path) not in sys.path


OWN = """
from det_driver.search import Create, Train
from tests.det_driver.driver.test_journaled_search import Answers

class Mine(Answers):
    def __init__(self, *given):
        super().__init__([Create(0, {}, 5), Train(0, 10)])
"""


def test_a_searcher_of_the_experiments_own_comes_from_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "of_its_own.py").write_text(OWN)
    config = ExperimentConfig(searcher=Custom(metric="loss", entrypoint="of_its_own:Mine"))
    assert searcher_of(config, Plugins.installed(), tmp_path).start() == [
        Create(0, {}, 5),
        Train(0, 10),
    ]

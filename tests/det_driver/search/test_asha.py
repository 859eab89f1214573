from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from det_core.config import AdaptiveAsha, AsyncHalving, Double, Length
from det_core.errors import MetricError
from det_driver.search import Close, Create, Exit, Searcher, Shutdown, Train, make
from det_driver.search.base import WORST

SPACE = {"lr": Double(minval=0, maxval=1)}


def halving(
    kind: str, *, rungs: int, trials: int, length: int, at_once: int = 3, **settings: Any
) -> Searcher:
    lengths: dict[str, dict[str, Any]] = {
        "promotes": {"max_length": Length("batches", length)},
        "stops by length": {"max_length": Length("batches", length), "stop_once": True},
        "stops by time": {"max_time": length, "time_metric": "batches"},
    }
    config = AsyncHalving(
        metric="loss",
        num_rungs=rungs,
        max_trials=trials,
        divisor=3,
        max_concurrent_trials=at_once,
        **lengths[kind],
        **settings,
    )
    return make(config, SPACE, 0)


def counted(reports: dict[int, list[int]]) -> dict[tuple[int, ...], int]:
    return Counter(tuple(lengths) for lengths in reports.values())


STOPPING = pytest.mark.parametrize("kind", ["stops by length", "stops by time"])
ALL_KINDS = pytest.mark.parametrize("kind", ["promotes", "stops by length", "stops by time"])


@STOPPING
def test_with_ever_worse_trials_only_the_first_is_not_stopped(kind: str, train) -> None:
    reports, _ = train(halving(kind, rungs=3, trials=10, length=900))
    assert counted(reports) == {(100, 300, 900): 1, (100,): 9}


@STOPPING
def test_with_ever_better_trials_none_is_stopped(kind: str, train) -> None:
    reports, _ = train(halving(kind, rungs=3, trials=10, length=900, smaller_is_better=False))
    assert counted(reports) == {(100, 300, 900): 10}


@pytest.mark.parametrize(("smaller_is_better", "sign"), [(True, 1), (False, -1)])
def test_best_third_of_each_rung_is_promoted_as_trials_worsen(
    smaller_is_better, sign, train
) -> None:
    searcher = halving(
        "promotes", rungs=3, trials=12, length=9000, smaller_is_better=smaller_is_better
    )
    reports, over = train(searcher, lambda trial: sign * trial)
    assert counted(reports) == {(1000, 3000, 9000): 1, (1000, 3000): 3, (1000,): 8}
    assert [len(reports[trial]) for trial in range(5)] == [3, 2, 2, 2, 1]
    assert over == Shutdown()


def test_best_third_of_each_rung_is_promoted_among_equals(train) -> None:
    reports, _ = train(
        halving("promotes", rungs=3, trials=12, length=12, at_once=0), lambda trial: 0.5
    )
    assert counted(reports) == {(1, 4, 12): 1, (1, 4): 3, (1,): 8}


def test_a_promoted_trial_that_fails_is_the_worst_of_its_rung() -> None:
    """The reference's case.

    The third of twelve exits in its second rung, all else stays the same.
    """
    searcher = halving("promotes", rungs=3, trials=12, length=9000)
    reports: Counter[int] = Counter()
    due = [op for op in searcher.start() if isinstance(op, Train)]
    while due:
        trial, until = due[0].trial, due.pop(0).until
        if (trial, until) == (2, 3000):
            operations = searcher.exited(2, Exit.ERRORED)
        else:
            reports[trial] += 1
            operations = searcher.validated(trial, until, {"loss": trial})
        due += [op for op in operations if isinstance(op, Train)]
    assert [reports[trial] for trial in range(12)] == [3, 2, 1, 2, *[1] * 8]


@ALL_KINDS
def test_invalid_hyperparameters_are_replaced_and_forgotten(kind: str, train) -> None:
    reports, over = train(
        halving(kind, rungs=3, trials=9, length=900), exits={0: Exit.INVALID_HP, 4: Exit.INVALID_HP}
    )
    assert len(reports) == 11
    assert counted(reports)[()] == 2
    assert over == Shutdown()


@ALL_KINDS
def test_failed_trials_count_as_the_worst(kind: str, train) -> None:
    """Those that fail before their first report let the others pass."""
    reports, _ = train(
        halving(kind, rungs=2, trials=6, length=300),
        exits=dict.fromkeys((1, 2, 3, 4), Exit.ERRORED),
    )
    assert [trial for trial, lengths in reports.items() if len(lengths) == 2] == [0, 5]


@ALL_KINDS
def test_nan_is_the_worst_metric(kind: str, train) -> None:
    metric = {0: float("nan"), 1: 1e300}.get
    reports, _ = train(
        halving(kind, rungs=2, trials=6, length=300, at_once=1), lambda trial: metric(trial, trial)
    )
    assert len(reports[2]) == 2
    if kind == "promotes":
        assert [len(reports[trial]) for trial in range(6)] == [1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), pytest.param(10**400, id="huge")])
def test_nothing_is_worse_than_what_a_failed_trial_gets(value: float) -> None:
    searcher = halving("promotes", rungs=2, trials=3, length=300)
    searcher.start()
    searcher.validated(0, 100, {"loss": value})
    assert searcher.state()["method"]["rungs"][0]["losses"] == [WORST]


def test_a_report_may_pass_several_rungs() -> None:
    searcher = halving("stops by time", rungs=3, trials=3, length=900)
    searcher.start()
    assert searcher.validated(0, 0, {"loss": 1, "batches": 99}) == []
    assert searcher.validated(0, 0, {"loss": 1, "batches": 350}) == [Train(0, 900)]
    assert searcher.validated(1, 0, {"loss": 0, "batches": 1000}) == [Close(1)]
    assert searcher.validated(2, 0, {"loss": 2, "batches": 900}) == [Close(2)]


def test_a_stopped_trial_makes_room_at_once() -> None:
    searcher = halving("stops by time", rungs=2, trials=3, length=300, at_once=2)
    searcher.start()
    searcher.validated(0, 0, {"loss": 0, "batches": 100})
    close, create, train = searcher.validated(1, 0, {"loss": 1, "batches": 100})
    assert (close, create.trial, train) == (Close(1), 2, Train(2, 100))
    assert searcher.exited(1, Exit.COMPLETED) == []


def test_trial_that_ends_early_frees_a_place_and_keeps_its_rank() -> None:
    searcher = halving("stops by time", rungs=2, trials=3, length=300, at_once=1)
    searcher.start()
    searcher.validated(0, 0, {"loss": 0, "batches": 100})
    create, _ = searcher.exited(0, Exit.COMPLETED)
    assert create.trial == 1
    assert Close(1) in searcher.validated(1, 0, {"loss": 1, "batches": 100})


def test_a_waiting_trial_that_ends_is_not_trained_again(train) -> None:
    searcher = halving("promotes", rungs=2, trials=3, length=300, at_once=2)
    searcher.start()
    searcher.validated(0, 100, {"loss": 0})
    assert searcher.exited(0, Exit.CANCELED) == []
    searcher.validated(1, 100, {"loss": 1})
    assert searcher.validated(2, 100, {"loss": 2}) == [Close(1), Close(2)]


def in_halves(rungs: int, trials: int, at_once: int) -> Searcher:
    length = Length("batches", 2 ** (rungs - 1))
    at = {"max_trials": trials, "max_concurrent_trials": at_once}
    return make(
        AsyncHalving(metric="loss", num_rungs=rungs, divisor=2, max_length=length, **at), SPACE, 0
    )


def on_event(searcher: Searcher, trial: int, length: int, loss: float) -> list[Any]:
    """Report, and return what is to be trained and what is closed."""
    return [
        op for op in searcher.validated(trial, length, {"loss": loss}) if not isinstance(op, Create)
    ]


def test_trial_that_ended_while_waiting_is_worst_of_next_rung() -> None:
    searcher = in_halves(3, trials=4, at_once=1)
    searcher.start()
    on_event(searcher, 0, 1, 0.0)
    searcher.exited(0, Exit.CANCELED)
    for trial in (1, 2):
        assert on_event(searcher, trial, 1, trial) == [Train(trial + 1, 1)]
    assert on_event(searcher, 3, 1, 3.0)[0] == Train(1, 2)
    assert on_event(searcher, 1, 2, 1.0) == [Train(1, 4)]  # the better one of two


def test_trial_that_ended_while_waiting_enters_next_rung_once() -> None:
    searcher = in_halves(3, trials=9, at_once=1)
    searcher.start()
    on_event(searcher, 0, 1, 1.0)
    searcher.exited(0, Exit.CANCELED)
    on_event(searcher, 1, 1, 2.0)  # with it, trial 0 is among the best
    for length in (1, 2, 4):
        on_event(searcher, 2, length, 0.0)
    on_event(searcher, 3, 1, 9.0)  # with it, trial 0 comes to be where another is promoted from
    assert searcher.state()["method"]["rungs"][1]["trials"] == [2, 0]


def test_waiting_trials_close_when_none_can_reach_their_rung() -> None:
    """None is under way to the rung or to any below."""
    searcher = in_halves(4, trials=6, at_once=2)
    searcher.start()
    for trial, length in ((0, 1), (1, 1), (0, 2), (2, 1), (3, 1), (1, 2), (0, 4), (4, 1)):
        assert not any(isinstance(op, Close) for op in on_event(searcher, trial, length, trial))
    assert on_event(searcher, 5, 1, 5) == [Train(2, 2), Close(3), Close(4), Close(5)]
    assert on_event(searcher, 2, 2, 2) == [Close(1), Close(2), Close(0)]


def test_a_searcher_becomes_another_whatever_it_did_before() -> None:
    one, other = (halving("promotes", rungs=2, trials=3, length=300) for _ in range(2))
    for searcher in (one, other):
        searcher.start()
    for trial in range(3):
        one.validated(trial, 100, {"loss": trial})
    other.restore(json.loads(json.dumps(one.state())))
    assert one.exited(0, Exit.INVALID_HP) == other.exited(0, Exit.INVALID_HP)
    assert one.validated(3, 100, {"loss": 9}) == other.validated(3, 100, {"loss": 9})
    assert one.state() == other.state()


@pytest.mark.parametrize("stop", [True, False])
def test_a_bracket_whose_trials_have_all_failed_is_done(stop: bool) -> None:
    searcher = adaptive(9, 90, 9, stop=stop)
    searcher.start()
    told, trial = [0.0], 0
    while trial < len(owners := searcher.state()["method"]["owners"]):
        if owners[trial] == 0:
            searcher.exited(trial, Exit.ERRORED)
            told.append(searcher.progress({}))
        trial += 1
    assert told == sorted(told)
    assert (len(told), told[-1]) == (7, 0.5)
    assert told[-2] < 0.5


def test_trials_wait_until_all_of_their_rung_have_reported() -> None:
    searcher = halving("promotes", rungs=2, trials=3, length=300)
    searcher.start()
    assert searcher.validated(0, 100, {"loss": 0}) == []
    assert searcher.validated(1, 100, {"loss": 1}) == []
    assert searcher.validated(0, 100, {"loss": -9}) == []  # it waits: nothing was asked for
    assert searcher.validated(2, 100, {"loss": 2}) == [Train(0, 300), Close(1), Close(2)]
    assert searcher.validated(0, 200, {"loss": 0}) == []
    assert searcher.validated(0, 300, {"loss": 0}) == [Close(0)]


def test_rungs_of_equal_length_are_one_for_trials_that_wait(train) -> None:
    reports, _ = train(halving("promotes", rungs=5, trials=9, length=9))
    assert counted(reports) == {(1,): 6, (1, 3): 2, (1, 3, 9): 1}


@ALL_KINDS
@pytest.mark.parametrize("at_once", [1, 4, 0])
def test_no_more_trials_are_open_than_may_be(kind: str, at_once: int) -> None:
    searcher = halving(kind, rungs=3, trials=30, length=900, at_once=at_once)
    training: dict[int, int] = {}
    operations = searcher.start()
    while True:
        training |= {op.trial: op.until for op in operations if isinstance(op, Train)}
        assert len(training) <= (at_once or 9)
        if not training:
            break
        trial = next(iter(training))
        until = training.pop(trial)
        operations = searcher.validated(trial, until, {"loss": (trial * 7) % 11, "batches": until})


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": 1.0, "epochs": 3}, "searcher.time_metric is 'batches', which the trial does not report; .*epochs, loss"),
        ({"loss": 1.0, "batches": "3"}, "searcher.time_metric is 'batches', which the trial reports as '3'"),
        ({"loss": 1.0, "batches": float("nan")}, "searcher.time_metric is 'batches', which the trial reports as NaN"),
        ({}, "searcher.metric is 'loss', which the trial does not report; reported: none"),
        ({"loss": None}, "searcher.metric is 'loss', which the trial reports as None; report a number"),
    ],
)  # fmt: skip
def test_a_metric_that_cannot_be_used_is_named(metrics: dict[str, Any], message: str) -> None:
    searcher = halving("stops by time", rungs=2, trials=3, length=300)
    searcher.start()
    with pytest.raises(MetricError, match=message):
        searcher.validated(0, 100, metrics)


def adaptive(trials: int, length: int, at_once: int, *, stop: bool, **settings: Any) -> Searcher:
    config = AdaptiveAsha(
        metric="loss",
        max_trials=trials,
        divisor=3,
        max_concurrent_trials=at_once,
        **(
            {"max_time": length, "time_metric": "batches"}
            if stop
            else {"max_length": Length("batches", length)}
        ),
        **settings,
    )
    return make(config, SPACE, 0)


def test_adaptive_asha_stops_all_worse_trials_of_a_bracket(train) -> None:
    """Brackets of 6 and 3 trials."""
    reports, _ = train(adaptive(9, 90, 3, stop=True))
    assert counted(reports) == {(10, 30, 90): 1, (10,): 5, (30, 90): 1, (30,): 2}


@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_adaptive_asha_promotes_within_each_bracket(smaller_is_better: bool, train) -> None:
    sign = 1 if smaller_is_better else -1
    searcher = adaptive(5, 900, 5, stop=False, max_rungs=2, smaller_is_better=smaller_is_better)
    reports, _ = train(searcher, lambda trial: sign * trial)
    assert reports == {0: [300, 900], 1: [300], 2: [300], 3: [900], 4: [900]}


def test_adaptive_asha_goes_on_when_a_trial_fails(train) -> None:
    reports, _ = train(adaptive(5, 900, 5, stop=False, max_rungs=2), exits={1: Exit.ERRORED})
    assert reports == {0: [300, 900], 1: [], 2: [300], 3: [900], 4: [900]}


def test_progress_averages_brackets() -> None:
    searcher = adaptive(9, 90, 9, stop=True)
    operations = searcher.start()
    assert sum(isinstance(op, Create) for op in operations) == 8
    searcher.validated(0, 0, {"loss": 1, "batches": 10})
    whole = 6 * 10 + 3 * 20 + 1 * 60  # of the 6 trials 3 are expected to get to 30, and 1 to 90
    assert searcher.progress({}) == pytest.approx(10 / whole / 2)


@ALL_KINDS
def test_progress_grows_as_what_is_to_be_trained_is(kind: str, train) -> None:
    """So that it can be told from it how long a search goes on."""
    searcher = halving(kind, rungs=3, trials=90, length=900)
    losses = Random(0).sample(range(90), 90)
    trained: dict[int, int] = {}
    told: list[tuple[int, float]] = []

    def report(trial: int) -> float:
        told.append((sum(trained.values()), searcher.progress({})))
        trained[trial] = {0: 100, 100: 300, 300: 900}[trained.get(trial, 0)]
        return losses[trial]

    train(searcher, report)
    whole = sum(trained.values())
    assert max(abs(progress - before / whole) for before, progress in told) < 0.15
    assert searcher.progress({}) == 1

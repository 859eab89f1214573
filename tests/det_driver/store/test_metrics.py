from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, Run, Store, TrialRow
from det_driver.store._history import PAGE


def positions(store: Store, trial: TrialRow, *, archived: bool = False) -> list[int]:
    return [metric.batches for metric in store.metrics.read(trial_id=trial.id, archived=archived)]


def test_metrics_are_read_by_position_in_any_order_of_arrival(
    store: Store, trial: TrialRow, run: Run
) -> None:
    store.metrics.report(trial.id, run.id, "validation", 20, {"loss": 0.5})
    store.metrics.report(trial.id, run.id, "training", 20, {"loss": 0.6})
    store.metrics.report(trial.id, run.id, "training", 10, {"loss": 0.7, "lr": [1, 2]})

    found = [*store.metrics.read(trial_id=trial.id)]

    assert [(each.group, each.batches) for each in found] == [
        ("training", 10),
        ("training", 20),
        ("validation", 20),
    ]
    assert found[0].values == {"loss": 0.7, "lr": [1, 2]}
    assert (found[0].run_id, found[0].archived) == (run.id, False)
    assert found[1].time <= found[0].time <= time.time()
    assert [each.batches for each in store.metrics.read(trial_id=trial.id, group="validation")] == [
        20
    ]


def test_metrics_that_are_not_finite_come_back_as_they_are(
    store: Store, trial: TrialRow, run: Run
) -> None:
    store.metrics.report(
        trial.id, run.id, "validation", 1, {"loss": math.nan, "up": math.inf, "down": -math.inf}
    )

    (found,) = store.metrics.read(trial_id=trial.id)

    assert math.isnan(found.values["loss"])
    assert (found.values["up"], found.values["down"]) == (math.inf, -math.inf)
    assert store.trials.get(trial.id).best_metric is None


def test_an_experiments_metrics_come_trial_by_trial(
    store: Store, experiment: ExperimentRow
) -> None:
    for request in range(3):
        trial = store.trials.create(experiment.id, request, {}, seed=0)
        store.metrics.report(
            trial.id, store.runs.begin(trial.id).id, "training", 9 - request, {"loss": 0.0}
        )

    found = store.metrics.read(experiment_id=experiment.id)

    assert [(each.trial_id, each.batches) for each in found] == [(1, 9), (2, 8), (3, 7)]


def test_a_history_of_several_pages_has_no_gap_and_no_repeat(
    store: Store, trial: TrialRow, run: Run
) -> None:
    count = PAGE + PAGE // 2
    with store.transaction():
        for batches in range(count):
            store.metrics.report(trial.id, run.id, "training", batches, {"loss": 1.0})
            if batches % 2:
                store.metrics.report(trial.id, run.id, "other", batches, {"loss": 1.0})

    assert positions(store, trial) == sorted([*range(count), *range(1, count, 2)])


def test_the_trial_knows_its_best_and_its_latest_validation(
    store: Store, trial: TrialRow, run: Run
) -> None:
    for batches, loss in [(10, 0.5), (20, 0.25), (30, 0.75)]:
        store.metrics.report(trial.id, run.id, "training", batches, {"loss": 0.0})
        store.metrics.report(trial.id, run.id, "validation", batches, {"loss": loss})

    found = store.trials.get(trial.id)

    assert (found.best_metric, found.best_batches, found.latest_metric, found.batches) == (
        0.25,
        20,
        0.75,
        30,
    )


def test_run_that_begins_earlier_archives_what_it_repeats(
    store: Store, trial: TrialRow, run: Run
) -> None:
    for batches, loss in [(10, 0.5), (20, 0.25)]:
        store.metrics.report(trial.id, run.id, "validation", batches, {"loss": loss})

    store.runs.begin(trial.id, from_batches=10)

    assert positions(store, trial) == [10]
    assert positions(store, trial, archived=True) == [20]
    found = store.trials.get(trial.id)
    assert (found.best_metric, found.best_batches, found.latest_metric, found.batches) == (
        0.5,
        10,
        0.5,
        10,
    )


def test_a_second_report_of_one_position_replaces_the_first(
    store: Store, trial: TrialRow, run: Run
) -> None:
    store.metrics.report(trial.id, run.id, "validation", 10, {"loss": 0.25})
    store.metrics.report(trial.id, run.id, "validation", 10, {"loss": 0.5})

    assert [each.values["loss"] for each in store.metrics.read(trial_id=trial.id)] == [0.5]
    assert [
        each.values["loss"] for each in store.metrics.read(trial_id=trial.id, archived=True)
    ] == [0.25]
    assert store.trials.get(trial.id).best_metric == 0.5


def test_metrics_of_nothing_or_of_both_are_refused_at_once(store: Store) -> None:
    with pytest.raises(TypeError, match=r"give trial_id or experiment_id"):
        store.metrics.read()
    with pytest.raises(TypeError, match=r"give trial_id or experiment_id"):
        store.metrics.read(trial_id=1, experiment_id=1)


def test_metrics_of_a_trial_that_is_not_there_are_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"^no trial 5; create it before its metrics$"):
        store.metrics.report(5, 1, "training", 1, {})


reports = st.tuples(
    st.just("report"),
    st.sampled_from(["training", "validation"]),
    st.integers(0, 6),
    st.sampled_from([1, 2, math.nan]),
)
begins = st.tuples(st.just("begin"), st.integers(0, 6))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(smaller=st.booleans(), actions=st.lists(reports | begins, max_size=25))
def test_any_history_is_one_live_row_per_position(
    store: Store, another: Callable[..., ExperimentRow], smaller: bool, actions: list[tuple]
) -> None:
    experiment = another(metric="loss", smaller_is_better=smaller)
    trial = store.trials.create(experiment.id, 0, {}, seed=0)
    run = store.runs.begin(trial.id)
    live: dict[tuple[int, str], float] = {}
    gone = 0
    for kind, *arguments in actions:
        if kind == "begin":
            (first,) = arguments
            run = store.runs.begin(trial.id, first)
            gone += sum(batches > first for batches, _ in live)
            live = {key: value for key, value in live.items() if key[0] <= first}
        else:
            group, batches, value = arguments
            store.metrics.report(trial.id, run.id, group, batches, {"loss": value})
            gone += (batches, group) in live
            live[batches, group] = value

    found = [
        ((each.batches, each.group), each.values["loss"])
        for each in store.metrics.read(trial_id=trial.id)
    ]
    assert repr(found) == repr(sorted(live.items()))  # repr, because NaN is not itself
    assert len([*store.metrics.read(trial_id=trial.id, archived=True)]) == gone
    valid = [
        value
        for (_, group), value in live.items()
        if group == "validation" and not math.isnan(value)
    ]
    assert store.trials.get(trial.id).best_metric == (min if smaller else max)(valid, default=None)

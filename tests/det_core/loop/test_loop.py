"""The rules of the loop, each a test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from det_core import Every, Loop, LoopError, MetricError, Progress, RunLoop, Schedule, Stop
from det_core.errors import DetError
from det_core.train.metrics import mean, number_or_none, plain
from det_core.train.schedule import NEVER, to_batches
from det_testing import fakes

STYLES = pytest.mark.parametrize("style", ["owned", "callback", "chunked"])


@STYLES
def test_all_styles_of_loop_give_one_trace(kit: Any, style: str) -> None:
    trial = kit.Trial(
        kit.Driver([10]), Schedule(report=Every(4), validate=Every(5), checkpoint=Every(6)), style
    )
    assert trial.run() is Stop.COMPLETED
    assert trial.driver.order == [
        ("training", 4),
        ("training", 5),
        ("validation", 5),
        ("training", 6),
        ("training", 8),
        ("training", 10),
        ("validation", 10),
    ]
    assert trial.events == [
        ("validate", 5),
        ("save", 5),
        ("save", 6),
        ("validate", 10),
        ("save", 10),
    ]


def completed(
    kit: Any, schedule: Schedule, rungs: tuple[int, ...] = (10,)
) -> tuple[Any, list[Any]]:
    """Return a trial that was run, with its loop and what remained before each batch."""
    trial, seen = kit.Trial(kit.Driver(rungs), schedule), []

    def look(loop: Loop, number: int) -> None:
        seen.append((loop, loop.remaining))

    trial.run(each_batch=look)
    return trial, seen


@STYLES
@pytest.mark.parametrize("strike", ["preempt", "lose"])
@pytest.mark.parametrize("report", [3, 100])
def test_a_step_past_the_stop_is_refused(kit: Any, style: str, strike: str, report: int) -> None:
    """Wherever the loop stopped, however far the next boundary was.

    Whether or not the flag is still raised.
    """
    trial = kit.Trial(kit.Driver([10]), Schedule(report=Every(report)), style)
    trial.run(kit.Interruption(strike, 2, True, False))
    trial.loop._host.preempted.raised = False
    assert trial.loop.remaining == 0
    with pytest.raises(
        LoopError, match=r"after the loop had preempted; stop training when step\(\) is true"
    ):
        trial.loop.step({"loss": 0.0})


def test_a_step_past_completion_is_refused(kit: Any) -> None:
    trial, _ = completed(kit, Schedule())
    with pytest.raises(
        LoopError, match="step\\(\\) called at batch 10 after the loop had completed"
    ):
        trial.loop.step({"loss": 0.0})


def test_a_chunk_past_a_boundary_is_refused(kit: Any) -> None:
    """Even by one batch, as the framework would have trained past a report."""

    def too_much(loop: Loop, number: int) -> None:
        loop.step({"loss": 0.0}, batches=loop.remaining + 1)

    trial = kit.Trial(kit.Driver([10]), Schedule(report=Every(4)))
    with pytest.raises(
        LoopError, match="trained 5 batches at once but only 4 were left before a boundary"
    ):
        trial.run(each_batch=too_much)


@pytest.mark.parametrize("batches", [0, -1])
def test_a_chunk_of_nothing_is_refused(kit: Any, batches: int) -> None:
    trial = kit.Trial(kit.Driver([10]), Schedule())
    with pytest.raises(LoopError, match=f"given {batches} batches; give 1 or more"):
        trial.run(each_batch=lambda loop, number: print(loop.step({"loss": 0.0}, batches=batches)))


def test_remaining_says_how_far_it_is_to_the_next_boundary(kit: Any) -> None:
    _, seen = completed(kit, Schedule(report=Every(4), validate=Every(6)))
    assert [remaining for _, remaining in seen] == [4, 3, 2, 1, 2, 1, 2, 1, 2, 1]


def test_there_are_no_batches_after_the_stop(kit: Any) -> None:
    trial, _ = completed(kit, Schedule(), (1,))
    assert list(trial.loop.batches([1, 2, 3])) == []


@STYLES
def test_a_preemption_is_noticed_at_the_next_step(kit: Any, style: str) -> None:
    """No report is due there.

    The numbers that wait for one are saved, and reported as if nothing had been.
    """
    trial = kit.Trial(kit.Driver([10]), Schedule(report=Every(5)), style)
    assert trial.run(kit.Interruption("preempt", 2)) is Stop.PREEMPTED
    state = trial.driver.checkpoints[-1][0]
    if style == "chunked":
        assert state["batches"] == 5
        return
    assert (state["batches"], len(state["pending"]), state["counts"]) == (2, 2, [1, 1])
    assert trial.driver.order == []
    assert trial.run() is Stop.COMPLETED
    assert trial.driver.order[0] == ("training", 5)


def test_a_preemption_does_not_wait_for_a_validation(kit: Any) -> None:
    """Validation may take long; the next run does it, as it is due where it begins."""
    trial = kit.Trial(kit.Driver([10]), Schedule(validate=Every(4)))
    assert trial.run(kit.Interruption("preempt", 4)) is Stop.PREEMPTED
    assert trial.events == [("save", 4)]
    assert trial.run() is Stop.COMPLETED
    assert trial.events[0] == ("validate", 4)


def test_what_fell_due_at_the_first_batch_is_caught_up_with_too(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([10]), Schedule(validate=Every(1)))
    assert trial.run(kit.Interruption("preempt", 1)) is Stop.PREEMPTED
    assert trial.run() is Stop.COMPLETED
    assert trial.events[0] == ("validate", 1)


def test_a_run_that_is_preempted_before_it_begins_trains_nothing(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([10]), Schedule(validate_first=True))
    host = kit.Host(trial.driver, kit.Interruption("none", 0))
    host.preempted.raised = True
    adapter = trial._adapter()
    loop = RunLoop(
        adapter, trial.schedule, host, adapter.trial.run.distributed, trial._saver(adapter, host)
    )
    assert loop.begin() is Stop.PREEMPTED
    assert trial.driver.order == []
    assert trial.driver.checkpoints[-1][0]["batches"] == 0


@STYLES
def test_a_promoted_trial_trains_on(kit: Any, style: str) -> None:
    """Without a restart, and with a checkpoint at each target, where other trials may start."""
    trial = kit.Trial(kit.Driver([2, 4, 7]), Schedule(policy="none"), style)
    assert trial.run() is Stop.COMPLETED
    assert trial.events == [
        ("validate", 2),
        ("save", 2),
        ("validate", 4),
        ("save", 4),
        ("validate", 7),
        ("save", 7),
    ]


def test_target_checkpoint_is_recorded_before_the_searcher_acts(kit: Any) -> None:
    """As it may answer with a trial that starts from there."""
    trial, seen = kit.Trial(kit.Driver([3, 6]), Schedule(policy="none")), []
    tell = trial.driver.validated

    def validated(batches: int, metrics: Mapping[str, Any], length: int | None) -> Any:
        seen.append((batches, trial.driver.checkpoints[-1][0]["batches"]))
        return tell(batches, metrics, length)

    trial.driver.validated = validated
    trial.run()
    assert seen == [(3, 3), (6, 6)]


@STYLES
def test_the_answer_to_a_validation_may_end_the_trial(kit: Any, style: str) -> None:
    trial = kit.Trial(
        kit.Driver([10], stop_at=4),
        Schedule(validate=Every(4), report=Every(3), policy="none"),
        style,
    )
    assert trial.run() is Stop.COMPLETED
    assert trial.events == [("validate", 4), ("save", 4)]


@STYLES
def test_a_trial_may_ask_for_its_end(kit: Any, style: str) -> None:
    """It ends after the batch, or chunk, that is being trained: reported, validated, saved."""
    trial = kit.Trial(kit.Driver([10]), Schedule(report=Every(6)), style)
    ask = {"each_batch": lambda loop, number: loop.request_stop() if number == 2 else None}
    assert trial.run(**ask) is Stop.USER_STOPPED
    at = 6 if style == "chunked" else 3
    assert trial.driver.order == [("training", at), ("validation", at)]
    assert trial.driver.checkpoints[-1][0]["batches"] == at


def test_a_wish_to_end_outlives_a_preemption(kit: Any) -> None:
    """Both come at the same batch.

    The run is preempted, and the next one ends where the trial asked.
    """
    trial = kit.Trial(kit.Driver([10]), Schedule(report=Every(6)))

    def ask(loop: Loop, number: int) -> None:
        if number == 2:
            loop.request_stop()

    assert trial.run(kit.Interruption("preempt", 3), each_batch=ask) is Stop.PREEMPTED
    assert trial.run() is Stop.USER_STOPPED
    assert trial.driver.order == [("training", 3), ("validation", 3)]


@pytest.mark.parametrize("word", range(1, 12))
@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("noticed", [True, False])
def test_a_run_that_loses_its_driver_saves_and_stops(
    kit: Any, word: int, heard: bool, noticed: bool
) -> None:
    """At any word, what was trained is saved, at most one batch later.

    What was not heard is sent again.
    """
    schedule = Schedule(
        report=Every(2), validate=Every(3), checkpoint=Every(4), validate_first=True
    )
    whole = kit.Trial(kit.Driver([6, 9]), schedule)
    whole.run()
    trial = kit.Trial(kit.Driver([6, 9]), schedule)
    assert trial.run(kit.Interruption("lose", word, heard, noticed)) is Stop.PREEMPTED
    assert trial.driver.checkpoints[-1][0]["batches"] == trial.loop.progress.batches
    assert trial.run() is Stop.COMPLETED
    assert trial.driver.history() == whole.driver.history()


@pytest.mark.parametrize("due", [{"validate": Every(2)}, {"checkpoint": Every(2)}])
def test_what_the_driver_has_stored_is_not_told_again(kit: Any, due: dict[str, Any]) -> None:
    """Its answer to a validation says that it has, and that it recorded a checkpoint.

    A long trial's would be ever more.
    """
    trial = kit.Trial(kit.Driver([6]), Schedule(report=Every(2), policy="none", **due))
    assert trial.run(kit.Interruption("preempt", 3)) is Stop.PREEMPTED
    assert trial.run() is Stop.COMPLETED
    assert len(trial.driver.order) == len(set(trial.driver.order))


def test_a_host_that_stores_nothing_is_told_nothing_again(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([6]), Schedule())
    adapter, host = trial._adapter(), kit.Host(trial.driver, kit.Interruption("none", 0))
    host.stores = False
    untold = Progress(batches=2, untold=[["training", 2, {"loss": 1.0}]])
    distributed = adapter.trial.run.distributed
    RunLoop(adapter, trial.schedule, host, distributed, lambda progress: True, untold).begin()
    assert trial.driver.order == []


def test_a_lost_driver_costs_no_validation(kit: Any) -> None:
    """A run that cannot learn its target does not validate on its way out."""
    trial = kit.Trial(kit.Driver([6]), Schedule(validate_first=True))
    assert trial.run(kit.Interruption("lose", 1)) is Stop.PREEMPTED
    assert trial.events == [("save", 0)]


@pytest.mark.parametrize(
    ("policy", "saved"), [("all", [2, 4, 6, 8]), ("best", [2, 4, 8]), ("none", [8])]
)
def test_the_policy_says_which_validations_are_saved(
    kit: Any, policy: str, saved: list[int]
) -> None:
    losses = {2: 3.0, 4: 2.0, 6: 2.5, 8: 9.0}
    trial = kit.Trial(kit.Driver([8]), Schedule(validate=Every(2), policy=policy))
    trial.run(validate=lambda adapter: {"val_loss": losses[trial.events[-1][1]]})
    assert [at for what, at in trial.events if what == "save"] == saved


@pytest.mark.parametrize("length", [1, 2])
def test_a_fresh_trial_may_be_validated_first(kit: Any, length: int) -> None:
    trial = kit.Trial(kit.Driver([length]), Schedule(validate_first=True))
    trial.run()
    assert trial.events == [("validate", 0), ("save", 0), ("validate", length), ("save", length)]


def test_a_length_of_nothing_validates_once_and_ends(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([0]), Schedule(validate_first=True))
    assert trial.run() is Stop.COMPLETED
    assert trial.events == [("validate", 0), ("save", 0)]
    assert trial.driver.order == [("validation", 0)]


@pytest.mark.parametrize(
    ("unit", "n", "batches"), [("epochs", 2, 8), ("records", 7, 3), ("records", 1, 1)]
)
def test_lengths_are_turned_into_batches_once(kit: Any, unit: str, n: int, batches: int) -> None:
    """An epoch has four batches here, and a batch two records.

    A part of a batch is not trained, but for the first.
    """
    trial = kit.Trial(kit.Driver([n], unit), Schedule())
    trial.run()
    assert trial.loop.progress.batches == batches


class Unsized:
    batches_per_epoch = None
    global_batch_size = None


class Pairs(Unsized):
    global_batch_size = 2


def test_epochs_without_a_length_are_refused() -> None:
    with pytest.raises(
        DetError,
        match=(
            "a length of 3 epochs cannot be counted, as the data has no length; give it in batches"
        ),
    ):
        to_batches(3, "epochs", Unsized())  # type: ignore[arg-type]


def test_records_without_a_batch_size_are_refused() -> None:
    with pytest.raises(
        DetError, match="a length of 3 records cannot be counted without a global_batch_size"
    ):
        to_batches(3, "records", Unsized())  # type: ignore[arg-type]


def test_no_records_are_no_batches() -> None:
    assert to_batches(0, "records", Pairs()) == 0  # type: ignore[arg-type]


def test_the_missing_metric_of_the_searcher_names_those_present(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([2]), Schedule(metric="accuracy"))
    with pytest.raises(
        MetricError,
        match=r"searcher\.metric is 'accuracy', but the validation returned val_loss, weight;",
    ):
        trial.run()


def test_a_validation_without_metrics_is_named_as_such(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([2]), Schedule(metric="accuracy"))
    with pytest.raises(MetricError, match="but the validation returned nothing;"):
        trial.run(validate=lambda adapter: {})


def test_the_searchers_metric_must_be_a_number(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([2]), Schedule(metric="accuracy"))
    with pytest.raises(
        MetricError, match=r"metric 'accuracy \(searcher.metric\)' is 'high' \(str\)"
    ):
        trial.run(validate=lambda adapter: {"accuracy": "high"})


def test_searcher_metric_may_be_an_array_of_one_number(kit: Any) -> None:
    """Such as one of shape (1,), which would otherwise be reported as a list."""

    class Array:
        def item(self) -> float:
            return 0.5

        def tolist(self) -> list[float]:
            return [0.5]

    trial = kit.Trial(kit.Driver([2]), Schedule(metric="accuracy"))
    trial.run(validate=lambda adapter: {"accuracy": Array(), "other": Array()})
    metrics = trial.driver.rows["validation", 2]
    assert (metrics["accuracy"], metrics["other"]) == (0.5, [0.5])


def test_a_validation_that_returns_no_mapping_is_refused(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([2]), Schedule())
    with pytest.raises(
        MetricError, match="validation returned float; return a dict of metrics by name"
    ):
        trial.run(validate=lambda adapter: 0.5)  # type: ignore[arg-type,return-value]


def test_reports_tell_batches_and_epochs_unless_the_trial_does(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([6]), Schedule())
    trial.run(validate=lambda adapter: {"val_loss": 1.0, "epochs": 77})
    assert trial.driver.rows["validation", 6] == {"val_loss": 1.0, "epochs": 77, "batches": 6}
    assert trial.driver.rows["training", 6]["epochs"] == 1.5


def test_progress_is_told_with_each_report(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([8]), Schedule(report=Every(3)))
    trial.run()
    assert trial.driver.fractions == [3 / 8, 6 / 8, 1.0]


def test_only_the_checkpoint_at_a_target_precedes_a_request(kit: Any) -> None:
    trial = kit.Trial(
        kit.Driver([4, 8]), Schedule(checkpoint=Every(3), validate=Every(2), policy="all")
    )
    trial.run()
    assert trial.followed == [(2, False), (3, False), (4, True), (6, False), (8, True)]
    trial = kit.Trial(kit.Driver([8]), Schedule(checkpoint=Every(3)))
    trial.run(kit.Interruption("preempt", 4))
    trial.run()
    assert trial.followed == [(3, False), (4, False), (6, False), (8, True)]


def test_how_far_it_is_is_not_told_where_nobody_knows(kit: Any) -> None:
    """As a trial without a length trains until its searcher, or it itself, ends it."""
    trial = kit.Trial(kit.Driver([NEVER], stop_at=4), Schedule(report=Every(2), validate=Every(4)))
    assert trial.run() is Stop.COMPLETED
    assert trial.driver.order == [("training", 2), ("training", 4), ("validation", 4)]
    assert trial.driver.fractions == []


def test_where_training_is_can_be_kept_once_it_has_begun(kit: Any) -> None:
    """For whoever looks into why it ended; what is saved there already is not saved again."""
    trial = kit.Trial(kit.Driver([10]), Schedule(checkpoint=Every(4)))
    trial.run(
        each_batch=lambda loop, number: loop.save_after_error() if number in (0, 2, 3, 4) else None
    )
    assert [at for what, at in trial.events if what == "save"] == [2, 3, 4, 8, 10]


def test_metrics_do_not_stay_on_the_device_for_ever(kit: Any) -> None:
    """Without a report they are fetched now and then, and a chunk has an end."""
    trial, seen = kit.Trial(kit.Driver([10_000]), Schedule(report=Every(0))), []
    trial.run(each_batch=lambda loop, number: seen.append((len(loop._rows), loop.remaining)))
    assert max(rows for rows, _ in seen) == 4095
    assert max(remaining for _, remaining in seen) == 4096
    assert trial.driver.order == [("training", 10_000), ("validation", 10_000)]


def test_the_progress_given_is_not_changed(kit: Any) -> None:
    given = Progress(batches=2, pending=[{"loss": 1.0}], counts=[2])
    trial = kit.Trial(kit.Driver([4]), Schedule())
    adapter = trial._adapter()
    host = kit.Host(trial.driver, kit.Interruption("none", 0))
    loop = RunLoop(
        adapter, Schedule(), host, adapter.trial.run.distributed, lambda progress: True, given
    )
    loop.begin()
    adapter.train(loop)
    assert given == Progress(batches=2, pending=[{"loss": 1.0}], counts=[2])


def test_a_mean_weighs_chunks_by_their_batches() -> None:
    assert mean([{"loss": 1.0}, {"loss": 4.0}], [1, 3]) == {"loss": 3.25}


def test_a_mean_is_over_the_batches_that_hold_the_metric() -> None:
    assert mean([{"a": 1.0}, {"a": 3.0, "b": 5.0}], [1, 1]) == {"a": 2.0, "b": 5.0}


def test_a_mean_does_not_depend_on_the_order_of_its_terms() -> None:
    values = [1e16, 1.0, -1e16, 1.0]
    for order in (values, values[::-1]):
        assert mean([{"loss": value} for value in order], [1] * 4) == {"loss": 0.5}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_training_metric_that_is_not_finite_is_noticed_once(
    kit: Any, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    numbers, seen = fakes.FakeAdapter.numbers, []

    def diverging(adapter: Any, rows: Any) -> Any:
        for row in (found := numbers(adapter, rows)):
            seen.append(row)
            if len(seen) >= 6:
                row["loss"] = value
        return found

    trial = kit.Trial(kit.Driver([12]), Schedule(report=Every(4)))
    trial.run()
    assert not trial.driver.notices
    monkeypatch.setattr(fakes.FakeAdapter, "numbers", diverging)
    trial = kit.Trial(kit.Driver([12]), Schedule(report=Every(4)))
    assert trial.run() is Stop.COMPLETED
    (notice,) = trial.driver.notices
    assert notice.startswith(f"the training metric 'loss' is {value} at batch 6; ")


def test_infinities_and_nan_have_a_mean() -> None:
    assert math.isnan(mean([{"loss": math.inf}, {"loss": -math.inf}], [1, 1])["loss"])
    assert math.isnan(mean([{"loss": math.nan}], [1])["loss"])


class Small(int):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (Small(3), 3),
        ({1: (2, Small(3))}, {"1": [2, 3]}),
        ([Small(1), {"a": None}], [1, {"a": None}]),
        ({1, 2}.__class__, "<class 'set'>"),
    ],
)
def test_plain_leaves_nothing_that_json_does_not_know(value: Any, expected: Any) -> None:
    got = plain({"m": value})["m"]
    assert got == expected
    assert type(got) is type(expected)


def test_plain_drops_bytes() -> None:
    assert plain({"image": b"PNG", "loss": 1.0}) == {"loss": 1.0}


def test_a_number_is_a_number_and_nothing_else_is() -> None:
    values = [1, 0.5, math.inf, math.nan, "1", None]
    assert [number_or_none(value) for value in values] == [1.0, 0.5, math.inf, None, None, None]


def test_a_preempted_run_owes_the_validation_that_is_due(kit: Any) -> None:
    schedule = Schedule(report=Every(5), validate=Every(5))
    trial = kit.Trial(kit.Driver([10]), schedule)
    trial.run(kit.Interruption("preempt", 5))
    assert trial.loop.owes_validation
    trial.run()
    assert trial.driver.order[-1] == ("validation", 10)
    assert not trial.loop.owes_validation
    trial = kit.Trial(kit.Driver([10]), schedule)
    trial.run(kit.Interruption("preempt", 4))
    assert not trial.loop.owes_validation

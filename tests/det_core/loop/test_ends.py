"""Both ends of training are the framework's.

It knows its length, and has the last word on its weights.
"""

from __future__ import annotations

from typing import Any

import pytest

from det_core import Every, Schedule, Stop
from det_core.config import Length

STYLES = pytest.mark.parametrize("style", ["owned", "callback", "chunked"])


@pytest.fixture
def trial(kit: Any) -> Any:
    """Make a trial whose framework doubles the weight at the end of training.

    It notes that among the events.
    """

    class Finishing(kit.Trial):
        finished = 0

        def _adapter(self) -> Any:
            adapter = super()._adapter()

            def finish() -> None:
                self.events.append(("finish", self.loop_now.progress.batches))
                self.finished += 1
                adapter.training.model.value *= 2

            adapter.finish = finish
            return adapter

        def _watch(self, adapter: Any, host: Any, loop: Any, *rest: Any) -> None:
            self.loop_now = loop
            super()._watch(adapter, host, loop, *rest)

    def make(rungs: list[int], length: Length | None, style: str = "owned", **schedule: Any) -> Any:
        made = Finishing(kit.Driver(rungs), Schedule(**schedule), style)
        made.length = length
        return made

    return make


@STYLES
def test_last_checkpoint_is_after_finish_and_before_validation(trial: Any, style: str) -> None:
    made = trial([10], Length("batches", 10), style, validate=Every(5), checkpoint=Every(5))
    assert made.run() is Stop.COMPLETED
    assert made.events == [
        ("validate", 5),
        ("save", 5),
        ("finish", 10),
        ("save", 10),
        ("validate", 10),
    ]
    assert made.driver.rows["validation", 10]["weight"] == made.weight


def test_finish_runs_at_the_last_target_and_at_no_earlier_rung(trial: Any) -> None:
    made = trial([4, 10], Length("batches", 10))
    made.run()
    assert [event for event in made.events if event[0] != "save"] == [
        ("validate", 4),
        ("finish", 10),
        ("validate", 10),
    ]


def test_lengths_in_epochs_are_counted_in_the_adapters_own(trial: Any) -> None:
    made = trial([8], Length("epochs", 2))
    made.run()
    assert ("finish", 8) in made.events


def test_finish_is_skipped_at_unknown_length_or_early_stop(trial: Any) -> None:
    """The early stop is the searcher's decision."""
    unknown = trial([10], None)
    unknown.run()
    early = trial([10], Length("batches", 10), validate=Every(4))
    early.driver.stop_at = 4
    early.run()
    assert unknown.finished == early.finished == 0


def test_a_trial_that_asks_for_its_end_is_over_for_good(trial: Any) -> None:
    made = trial([10], Length("batches", 10))
    assert (
        made.run(each_batch=lambda loop, number: loop.request_stop() if number == 5 else None)
        is Stop.USER_STOPPED
    )
    assert made.events == [("finish", 6), ("validate", 6), ("save", 6)]


def test_finish_is_validated_and_saved_even_at_an_early_end(trial: Any) -> None:
    made = trial([1], Length("batches", 1))
    made.run()
    assert made.events == [("finish", 1), ("save", 1), ("validate", 1)]
    made = trial([10], Length("batches", 10), validate_first=True)

    def validate(adapter: Any) -> Any:
        made.loop_now.request_stop()
        return {"val_loss": adapter.training.model.value}

    assert made.run(validate=validate) is Stop.USER_STOPPED
    assert made.events == [
        ("validate", 0),
        ("save", 0),
        ("finish", 0),
        ("validate", 0),
        ("save", 0),
    ]


def test_a_trial_that_was_over_and_is_to_go_on_ends_again(trial: Any) -> None:
    made = trial([10], Length("batches", 10))
    made.run(each_batch=lambda loop, number: loop.request_stop() if number == 5 else None)
    made.driver.rungs, made.driver.rung, made.length = [14], 0, Length("batches", 14)
    assert made.run() is Stop.COMPLETED
    assert made.events == [("finish", 14), ("save", 14), ("validate", 14)]


def test_preemption_saves_before_finish_and_next_run_finishes(trial: Any, kit: Any) -> None:
    whole = trial([10], Length("batches", 10))
    whole.run()
    made = trial([10], Length("batches", 10))
    assert made.run(kit.Interruption("preempt", 10)) is Stop.PREEMPTED
    assert made.events == [("save", 10)]
    assert made.run() is Stop.COMPLETED
    assert made.events == [("finish", 10), ("save", 10), ("validate", 10)]
    assert made.weight == whole.weight


@pytest.mark.slow
@STYLES
@pytest.mark.parametrize("kind", ["kill", "kill_call", "lose", "preempt"])
def test_wherever_a_run_is_struck_the_weights_are_finished_once(
    trial: Any, kit: Any, kind: str, style: str
) -> None:
    """At any batch, and at any word to the driver: heard by it or not."""
    whole = trial([4, 10], Length("batches", 10), style, validate=Every(4), checkpoint=Every(3))
    whole.run()
    for at in range(1, 26):
        for heard in (True, False):
            made = trial(
                [4, 10], Length("batches", 10), style, validate=Every(4), checkpoint=Every(3)
            )
            made.run(kit.Interruption(kind, at, heard))
            for _ in range(3):
                if made.driver.rung < 2:
                    made.run()
            assert made.weight == whole.weight, (at, heard)
            assert made.driver.history() == whole.driver.history(), (at, heard)


def test_a_fault_in_the_last_validation_loses_no_training(trial: Any) -> None:
    """The next run has nothing to train.

    It validates what was saved, and reports what the first would have.
    """
    whole = trial([10], Length("batches", 10))
    whole.run()
    made = trial([10], Length("batches", 10))

    def raises(adapter: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made.run(validate=raises)
    assert made.events == [("finish", 10), ("save", 10), ("validate", 10)]
    trained: list[int] = []
    assert made.run(each_batch=lambda loop, number: trained.append(number)) is Stop.COMPLETED
    assert (trained, made.events) == ([], [("validate", 10)])
    assert made.weight == whole.weight
    assert made.driver.history() == whole.driver.history()


@pytest.mark.parametrize(
    "answer", [{}, {"loss": 1.0}, {"val_loss": "low"}, None, ZeroDivisionError()]
)
def test_failed_validation_saves_what_was_trained(trial: Any, answer: Any) -> None:
    whole = trial([10], None, validate=Every(4), metric="val_loss")
    whole.run()
    made = trial([10], None, validate=Every(4), metric="val_loss")

    def validate(adapter: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(Exception):  # noqa: B017 - each answer has an error of its own, which other tests look at
        made.run(validate=validate)
    assert made.events == [("validate", 4), ("save", 4)]
    assert made.run() is Stop.COMPLETED
    assert made.events[0] == ("validate", 4)
    assert made.driver.history() == whole.driver.history()


@pytest.mark.parametrize("changes", [False, True])
def test_failed_finish_saves_only_unchanged_weights(trial: Any, changes: bool) -> None:
    made = trial([10], Length("batches", 10))
    make = made._adapter

    def failing() -> Any:
        adapter = make()
        adapter.fingerprint = lambda: str(adapter.training.model.value)

        def finish() -> None:
            adapter.training.model.value *= 2 if changes else 1
            raise ZeroDivisionError

        adapter.finish = finish
        return adapter

    made._adapter = failing
    with pytest.raises(ZeroDivisionError):
        made.run()
    assert made.events == ([] if changes else [("save", 10)])
    made._adapter = make
    assert made.run() is Stop.COMPLETED
    assert made.driver.rows["validation", 10]["weight"] == made.weight


def test_stop_request_holds_although_the_last_validation_fails(trial: Any) -> None:
    made = trial([10], Length("batches", 10))
    stops = {"each_batch": lambda loop, number: loop.request_stop() if number == 5 else None}

    def raises(adapter: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made.run(validate=raises, **stops)
    assert made.events == [("finish", 6), ("validate", 6), ("save", 6)]
    assert made.run() is Stop.USER_STOPPED
    assert made.events == [("validate", 6)]

"""Both ends of training are the framework's: it knows its length, and has the last word on its weights."""

from __future__ import annotations

from typing import Any

import pytest

from det_core import Every, Schedule, Stop
from det_core.config import Length

STYLES = pytest.mark.parametrize("style", ["owned", "callback", "chunked"])


@pytest.fixture
def trial(kit: Any) -> Any:
    """Make a trial whose framework doubles the weight at the end of training, and notes it among the events."""

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
def test_the_framework_ends_training_before_the_last_validation_and_checkpoint(trial: Any, style: str) -> None:
    made = trial([10], Length("batches", 10), style, validate=Every(5), checkpoint=Every(5))
    assert made.run() is Stop.COMPLETED
    assert made.events == [("validate", 5), ("save", 5), ("finish", 10), ("validate", 10), ("save", 10)]
    assert made.driver.rows["validation", 10]["weight"] == made.weight


def test_it_does_where_the_trial_ends_for_good_and_at_no_rung_below(trial: Any) -> None:
    made = trial([4, 10], Length("batches", 10))
    made.run()
    assert [event for event in made.events if event[0] != "save"] == [("validate", 4), ("finish", 10), ("validate", 10)]


def test_lengths_in_epochs_are_counted_in_the_adapters_own(trial: Any) -> None:
    made = trial([8], Length("epochs", 2))
    made.run()
    assert ("finish", 8) in made.events


def test_where_nobody_knows_the_length_or_the_searcher_ends_it_early_training_is_left_as_it_is(trial: Any) -> None:
    unknown = trial([10], None)
    unknown.run()
    early = trial([10], Length("batches", 10), validate=Every(4))
    early.driver.stop_at = 4
    early.run()
    assert unknown.finished == early.finished == 0


def test_a_trial_that_asks_for_its_end_is_over_for_good(trial: Any) -> None:
    made = trial([10], Length("batches", 10))
    assert made.run(each_batch=lambda loop, number: loop.request_stop() if number == 5 else None) is Stop.USER_STOPPED
    assert made.events == [("finish", 6), ("validate", 6), ("save", 6)]


def test_what_the_framework_leaves_is_measured_and_saved_however_early_the_end_comes(trial: Any) -> None:
    made = trial([1], Length("batches", 1))
    made.run()
    assert made.events == [("finish", 1), ("validate", 1), ("save", 1)]
    made = trial([10], Length("batches", 10), validate_first=True)

    def validate(adapter: Any) -> Any:
        made.loop_now.request_stop()
        return {"val_loss": adapter.training.model.value}

    assert made.run(validate=validate) is Stop.USER_STOPPED
    assert made.events == [("validate", 0), ("save", 0), ("finish", 0), ("validate", 0), ("save", 0)]


def test_a_trial_that_was_over_and_is_to_go_on_ends_again(trial: Any) -> None:
    made = trial([10], Length("batches", 10))
    made.run(each_batch=lambda loop, number: loop.request_stop() if number == 5 else None)
    made.driver.rungs, made.driver.rung, made.length = [14], 0, Length("batches", 14)
    assert made.run() is Stop.COMPLETED
    assert made.events == [("finish", 14), ("validate", 14), ("save", 14)]


def test_a_preemption_saves_what_training_left_and_the_next_run_finishes(trial: Any, kit: Any) -> None:
    whole = trial([10], Length("batches", 10))
    whole.run()
    made = trial([10], Length("batches", 10))
    assert made.run(kit.Interruption("preempt", 10)) is Stop.PREEMPTED
    assert made.events == [("save", 10)]
    assert made.run() is Stop.COMPLETED
    assert made.events == [("finish", 10), ("validate", 10), ("save", 10)]
    assert made.weight == whole.weight


@STYLES
@pytest.mark.parametrize("kind", ["kill", "kill_call", "lose", "preempt"])
def test_wherever_a_run_is_struck_the_weights_are_finished_once(trial: Any, kit: Any, kind: str, style: str) -> None:
    """At any batch, and at any word to the driver: heard by it or not."""
    whole = trial([4, 10], Length("batches", 10), style, validate=Every(4), checkpoint=Every(3))
    whole.run()
    for at in range(1, 26):
        for heard in (True, False):
            made = trial([4, 10], Length("batches", 10), style, validate=Every(4), checkpoint=Every(3))
            made.run(kit.Interruption(kind, at, heard))
            for _ in range(3):
                if made.driver.rung < 2:
                    made.run()
            assert made.weight == whole.weight, (at, heard)
            assert made.driver.history() == whole.driver.history(), (at, heard)

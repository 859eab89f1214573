"""What a run does, and when, against a plain `for` written from the rules.

Reports, validations, checkpoints, progress.
"""

from __future__ import annotations

from math import fsum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_core import At, Every, Schedule, Stop

PERIODS = st.one_of(st.integers(0, 6).map(Every), st.sets(st.integers(0, 25), max_size=6).map(At))
SCHEDULES = st.builds(
    Schedule,
    report=PERIODS,
    validate=PERIODS,
    checkpoint=PERIODS,
    policy=st.sampled_from(["best", "all", "none"]),
    metric=st.sampled_from([None, "val_loss"]),
    validate_first=st.booleans(),
)
RUNGS = st.lists(st.integers(1, 20), min_size=1, max_size=3, unique=True).map(sorted)
LOSSES = st.lists(st.integers(0, 9).map(float), min_size=25, max_size=25)


class Oracle:
    """The events of an undisturbed run, in order.

    `left` is how far it was to the next boundary before each batch.
    """

    def __init__(self, schedule: Schedule, rungs: list[int], losses: list[float]) -> None:
        self.schedule, self.losses = schedule, losses
        self.events: list[tuple[str, int]] = []
        self.told: list[tuple[str, int]] = []
        self.fractions: list[float] = []
        self.left: list[int] = []
        self.best = float("inf")
        if schedule.validate_first:
            self.validate(0)
        for start, target in zip([0, *rungs], rungs, strict=False):
            for done in range(start + 1, target + 1):
                self.left.append(min(schedule.after(done - 1), target) - (done - 1))
                if done == target or schedule.due(done):
                    self.told.append(("training", done))
                    self.fractions.append(done / target)
                if done == target or schedule.validate.due(done):
                    self.validate(done, complete=done == target)
                if schedule.checkpoint.due(done):
                    self.save(done)

    def validate(self, done: int, complete: bool = False) -> None:
        self.events.append(("validate", done))
        self.told.append(("validation", done))
        loss = self.losses[done]
        better, self.best = loss < self.best, min(loss, self.best)
        if complete or self.schedule.policy == "all" or (self.schedule.policy == "best" and better):
            self.save(done)

    def save(self, done: int) -> None:
        if ("save", done) not in self.events:
            self.events.append(("save", done))


@pytest.mark.parametrize("style", ["owned", "callback", "chunked"])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedule=SCHEDULES, rungs=RUNGS, losses=LOSSES)
def test_a_run_does_what_the_rules_say_where_they_say_it(
    kit: Any, style: str, schedule: Schedule, rungs: list[int], losses: list[float]
) -> None:
    oracle = Oracle(schedule, rungs, losses)
    trial, left = kit.Trial(kit.Driver(rungs), schedule, style), []
    stop = trial.run(
        validate=lambda adapter: {"val_loss": losses[trial.events[-1][1]]},
        each_batch=lambda loop, number: left.append(loop.remaining),
    )
    assert stop is Stop.COMPLETED
    assert (trial.events, trial.driver.order) == (oracle.events, oracle.told)
    assert trial.driver.fractions == pytest.approx(oracle.fractions)
    assert style == "chunked" or left == oracle.left


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedule=SCHEDULES, rungs=RUNGS)
def test_a_report_is_the_mean_of_the_batches_since_the_last_one(
    kit: Any, schedule: Schedule, rungs: list[int]
) -> None:
    each = kit.Trial(kit.Driver(rungs), Schedule(report=Every(1)))
    each.run()
    trial = kit.Trial(kit.Driver(rungs), schedule)
    trial.run()
    before = 0
    for group, done in trial.driver.order:
        if group == "training":
            metrics = trial.driver.rows[group, done]
            losses = [each.driver.rows["training", n]["loss"] for n in range(before + 1, done + 1)]
            assert metrics["loss"] == pytest.approx(fsum(losses) / len(losses), rel=1e-9)
            assert (metrics["batches"], metrics["epochs"]) == (done, done / 4)
            before = done
    assert before == rungs[-1]

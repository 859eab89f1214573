"""However a trial is interrupted, its history and weight are those of one that was not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from det_core import At, Every, Schedule, Stop


class Odd:
    """A container that can only be asked."""

    def __contains__(self, position: object) -> bool:
        return isinstance(position, int) and position % 5 == 3

    def __repr__(self) -> str:
        return "Odd()"


PERIODS = st.one_of(
    st.integers(0, 7).map(Every),
    st.sets(st.integers(0, 25), max_size=6).map(At),
    st.integers(1, 5).map(lambda n: At(range(n, 30, n))),
    st.just(At(Odd(), horizon=10)),
)
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
STRIKES = st.lists(
    st.tuples(
        st.sampled_from(["preempt", "kill", "lose", "kill_call"]),
        st.integers(1, 12),
        st.booleans(),
        st.booleans(),
    ),
    max_size=5,
)
STYLES = st.sampled_from(["owned", "callback", "chunked"])


def check(
    kit: Any,
    schedule: Schedule,
    rungs: list[int],
    strikes: list[Any],
    style: str,
    unit: str = "batches",
) -> None:
    whole = kit.Trial(kit.Driver(rungs, unit), schedule, style)
    assert whole.run() is Stop.COMPLETED
    broken = kit.Trial(kit.Driver(rungs, unit), schedule, style)
    for strike in strikes:
        start = broken.driver.restart()[0]
        stop = broken.run(kit.Interruption(*strike))
        assert len(set(broken.events)) == len(broken.events), "twice at one position"
        if start is not None:
            assert (
                "save",
                start.batches,
            ) not in broken.events, "saved again what it was restored from"
            assert (
                start.validated_at != start.batches
                or ("validate", start.batches) not in broken.events
            )
        if stop is Stop.PREEMPTED:
            assert broken.driver.checkpoints[-1][0]["batches"] == broken.loop.progress.batches
    assert broken.run() is Stop.COMPLETED
    assert [key for key, _ in broken.driver.history()] == [key for key, _ in whole.driver.history()]
    about = (
        (lambda value: pytest.approx(value, rel=1e-9))
        if style == "chunked"
        else (lambda value: value)
    )
    for (_, left), (_, right) in zip(broken.driver.history(), whole.driver.history(), strict=True):
        assert left == about(right)
    assert broken.weight == whole.weight
    assert broken.driver.checkpoints[-1][0]["batches"] == whole.driver.checkpoints[-1][0]["batches"]


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(schedule=SCHEDULES, rungs=RUNGS, strikes=STRIKES, style=STYLES)
@example(
    schedule=Schedule(report=Every(2)), rungs=[4], strikes=[("lose", 2, False, True)], style="owned"
)
@example(
    schedule=Schedule(validate=Every(2)),
    rungs=[4],
    strikes=[("lose", 2, True, False)],
    style="chunked",
)
@example(
    schedule=Schedule(validate=Every(2), policy="none"),
    rungs=[4],
    strikes=[("kill_call", 5, True, True)],
    style="owned",
)
def test_history_has_no_gap_and_no_repeat(
    kit: Any, schedule: Schedule, rungs: list[int], strikes: list[Any], style: str
) -> None:
    """Preempted at any batch, killed at any batch or word, the driver lost at any word.

    Nothing shows afterwards.
    """
    check(kit, schedule, rungs, strikes, style)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    schedule=SCHEDULES,
    rungs=RUNGS,
    strikes=STRIKES,
    style=STYLES,
    unit=st.sampled_from(["epochs", "records"]),
)
def test_neither_have_lengths_in_other_units(
    kit: Any, schedule: Schedule, rungs: list[int], strikes: list[Any], style: str, unit: str
) -> None:
    """Epochs and records are turned into batches once; what follows is the same."""
    check(
        kit,
        schedule,
        sorted({1 + n // 4 for n in rungs}) if unit == "epochs" else rungs,
        strikes,
        style,
        unit,
    )


def test_reports_received_but_not_stored_are_sent_again(kit: Any) -> None:
    class Forgetful(kit.Driver):  # type: ignore[misc, name-defined]
        stores = False

        def told(self, *report: Any) -> None:
            if self.stores:
                super().told(*report)

    trial = kit.Trial(
        Forgetful([10]), Schedule(report=Every(3), checkpoint=Every(4), policy="none")
    )
    trial.run(
        kit.Interruption("lose", 6, heard=False, noticed=False)
    )  # at the checkpoint of batch 4
    assert [state["batches"] for state, _ in trial.driver.checkpoints] == [4, 6]
    trial.driver.stores = True
    assert trial.run() is Stop.COMPLETED
    assert [at for group, at in trial.driver.order if group == "training"] == [3, 4, 6, 8, 9, 10]


def test_lost_validation_at_the_target_is_sent_once_as_complete(kit: Any) -> None:
    heard = []

    class Noting(kit.Driver):  # type: ignore[misc, name-defined]
        def validated(self, batches: int, metrics: Any, length: int | None) -> Any:
            heard.append((batches, length))
            return super().validated(batches, metrics, length)

    trial = kit.Trial(Noting([10]), Schedule(policy="none"))
    trial.run(kit.Interruption("lose", 5, heard=False))
    assert not heard
    assert trial.run() is Stop.COMPLETED
    assert heard == [(10, 10)]


def test_lost_validation_is_sent_although_the_trial_was_stopped(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([10]), Schedule(validate=Every(4), policy="none"))
    trial.run(kit.Interruption("lose", 4, heard=False))
    assert ("validation", 4) not in trial.driver.rows
    trial.driver.stopped = True
    assert trial.run() is Stop.COMPLETED
    assert ("validation", 4) in trial.driver.rows


def test_progress_is_at_most_1_when_the_target_moves_nearer(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([10]), Schedule(report=Every(9)))
    trial.run(kit.Interruption("lose", 2, heard=False))
    trial.driver.rungs = [4]
    trial.run()
    assert trial.driver.fractions[0] == 1.0
    assert ("training", 9) in trial.driver.rows


def test_recorded_validation_is_not_sent_again_after_a_kill(kit: Any) -> None:
    trial = kit.Trial(kit.Driver([10]), Schedule(validate=Every(4), policy="all"))
    trial.run(kit.Interruption("kill", 6))
    assert trial.run() is Stop.COMPLETED
    assert [at for group, at in trial.driver.order if group == "validation"] == [4, 8, 10]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedule=SCHEDULES, stop_at=st.integers(0, 12), strikes=STRIKES, style=STYLES)
def test_a_trial_that_is_stopped_early_ends_where_it_was_stopped(
    kit: Any, schedule: Schedule, stop_at: int, strikes: list[Any], style: str
) -> None:
    """The answer to a validation may be that it was the last.

    Preemptions change nothing in that.
    """
    whole = kit.Trial(kit.Driver([12], stop_at=stop_at), schedule, style)
    assert whole.run() is Stop.COMPLETED
    broken = kit.Trial(kit.Driver([12], stop_at=stop_at), schedule, style)
    for _, at, *_ in strikes:
        if broken.run(kit.Interruption("preempt", at)) is Stop.COMPLETED:
            break
    else:
        assert broken.run() is Stop.COMPLETED
    assert [key for key, _ in broken.driver.history()] == [key for key, _ in whole.driver.history()]
    assert broken.weight == whole.weight

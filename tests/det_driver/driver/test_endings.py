"""What becomes of a trial when its run has ended.

That depends on the run's last message, and on what had been asked of it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_transactions import RANDOM, run, state_of

from det_core import Outcome
from det_driver.driver._endings import Endings, ExperimentFailures, outcome_of, reason_of
from det_driver.driver._starting import RESTART_SECONDS
from det_driver.driver._trials import ActiveRun
from det_driver.search import Exit
from det_driver.store import ExperimentState, Store, TrialState
from det_node.process import how_it_ended
from det_node.protocol import Finished

SINGLE = {"name": "single", "metric": "loss", "max_length": 10}


class Bench:
    """An experiment in memory and on disk, without processes.

    Its runs begin, and end as a test says.
    """

    def __init__(self, store: Store, searcher: dict[str, Any] = RANDOM, **settings: Any) -> None:
        self.state = state_of(store, searcher, **settings)
        self.failures = ExperimentFailures()
        self.endings = Endings(self.state, self.failures, (0.0,))
        self.live: Any = None

    def begin(self, **facts: Any) -> ActiveRun:
        """Begin a run of the trial whose turn it is, of which these facts are known."""
        self.live = run(self.state)
        for name, value in facts.items():
            setattr(self.live.active, name, value)
        return self.live.active

    def end(self, status: int = 0) -> TrialState:
        """End the run; return what its trial is then."""
        active, self.live.active = self.live.active, None
        self.state.store.slots.release(active.lease)
        with self.state.transaction():
            self.endings.finish_run(self.live, active, status)
        self.state.queue.add(self.live)
        return self.row.state

    def ends(self, outcome: Outcome | None, status: int = 0, **facts: Any) -> TrialState:
        """Begin a run and end it."""
        self.begin(outcome=outcome, **facts)
        return self.end(status)

    def reach(self) -> None:
        """Let the active run report its target's validation.

        The searcher answers with a close.
        """
        with self.state.transaction():
            self.state.validated(self.live, self.live.active, 10, {"loss": 1.0}, 10)

    def save(self, batches: int) -> None:
        """Let the run under way record a checkpoint."""
        active = self.live.active
        uuid = f"{active.run.id}-{batches}"
        self.state.store.checkpoints.record(
            uuid, self.live.id, active.run.id, batches, storage="{}", size=0
        )

    @property
    def row(self) -> Any:
        return self.state.row(self.live)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def test_a_trial_that_reached_its_target_is_complete(store: Store) -> None:
    bench = Bench(store)
    bench.begin(outcome=Outcome.COMPLETED)
    bench.reach()
    assert bench.end() is TrialState.COMPLETED
    assert bench.live.plan.exited is Exit.COMPLETED
    assert bench.live.plan.request not in bench.state.open


def test_a_trial_that_reached_its_rung_waits_for_its_searcher(store: Store) -> None:
    halving = {
        "name": "async_halving",
        "metric": "loss",
        "num_rungs": 2,
        "max_trials": 4,
        "max_length": 40,
    }
    bench = Bench(store, halving | {"divisor": 4, "max_concurrent_trials": 2})
    bench.begin(outcome=Outcome.COMPLETED)
    bench.reach()
    assert bench.end() is TrialState.WAITING
    assert bench.live.plan.exited is None


def test_trial_whose_target_grew_as_its_run_ended_is_queued(store: Store) -> None:
    bench = Bench(store)
    assert bench.ends(Outcome.COMPLETED) is TrialState.QUEUED
    assert bench.state.queue.first is bench.live


def test_script_that_exits_with_status_0_is_complete(store: Store) -> None:
    """This holds whether it has reported its end or not."""
    bench = Bench(store, entrypoint="python3 train.py")
    assert bench.ends(Outcome.COMPLETED) is TrialState.COMPLETED
    assert bench.ends(None, status=0) is TrialState.COMPLETED
    assert bench.ends(None, status=1) is TrialState.QUEUED  # it is tried again


def test_a_trial_class_that_ends_without_a_word_has_failed(store: Store) -> None:
    bench = Bench(store)
    assert bench.ends(None, status=0) is TrialState.QUEUED
    assert bench.row.restarts == 1


def test_user_stopped_trial_is_complete_and_its_searcher_knows(store: Store) -> None:
    bench = Bench(store)
    assert bench.ends(Outcome.USER_STOPPED) is TrialState.COMPLETED
    assert bench.live.plan.exited is Exit.USER_STOPPED


def test_declined_hyperparameters_end_the_trial_and_are_noted(store: Store) -> None:
    bench = Bench(store)
    assert bench.ends(Outcome.INVALID_HP, message="too wide") is TrialState.INVALID_HP
    assert bench.live.plan.exited is Exit.INVALID_HP
    assert bench.row.exit_reason == "too wide"
    assert bench.failures.declined == ["trial 1: too wide"]
    assert not bench.failures.messages


def test_a_run_that_never_began_is_held_against_nobody(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    assert bench.ends(None, status=1, unstarted="no memory") is TrialState.QUEUED
    assert bench.row.restarts == 0


@pytest.mark.parametrize(
    ("target_state", "becomes"),
    [
        (None, TrialState.QUEUED),
        (ExperimentState.PAUSED, TrialState.PAUSED),
        (ExperimentState.ERROR, TrialState.PAUSED),
        (ExperimentState.CANCELED, TrialState.CANCELED),
    ],
)
def test_a_preempted_trial_is_what_its_experiment_is_to_become(
    store: Store, target_state: ExperimentState | None, becomes: TrialState
) -> None:
    bench = Bench(store)
    bench.state.target_state = target_state
    assert bench.ends(Outcome.PREEMPTED, preempting=True) is becomes
    assert bench.live.plan.exited is (
        Exit.CANCELED if target_state is ExperimentState.CANCELED else None
    )


def test_a_preempted_trial_that_its_searcher_closed_is_complete(store: Store) -> None:
    bench = Bench(store)
    bench.state.target_state = ExperimentState.CANCELED
    bench.begin(outcome=Outcome.PREEMPTED)
    bench.reach()
    assert bench.end() is TrialState.COMPLETED
    assert bench.live.plan.exited is Exit.COMPLETED


def test_a_script_that_fails_when_preempted_uses_no_restart(store: Store) -> None:
    """It may save and end with status 1, as its own handler of a signal does."""
    bench = Bench(store)
    assert bench.ends(None, 1, preempting=True) is TrialState.QUEUED
    assert bench.row.restarts == 0


@pytest.mark.parametrize("asked", [{"preempting": True}, {"adopted": True}, {}])
def test_sixth_unrequested_preemption_in_a_row_counts_as_restart(
    store: Store, asked: dict[str, bool]
) -> None:
    """A requested preemption never counts."""
    bench = Bench(store)
    states = [bench.ends(Outcome.PREEMPTED, **asked) for _ in range(6)]
    assert set(states) == {TrialState.QUEUED}
    assert bench.row.restarts == (0 if asked else 1)


def test_preemption_of_an_ending_experiment_never_counts(store: Store) -> None:
    bench = Bench(store)
    for _ in range(5):
        assert bench.ends(Outcome.PREEMPTED) is TrialState.QUEUED
    bench.state.target_state = ExperimentState.PAUSED
    assert bench.ends(Outcome.PREEMPTED) is TrialState.PAUSED
    assert bench.row.restarts == 0


def test_run_that_saves_further_progress_resets_preemption_count(store: Store) -> None:
    bench = Bench(store)
    for fruitful in (5, 10):
        for number in range(1, fruitful + 1):
            bench.begin(outcome=Outcome.PREEMPTED)
            if number == 5:
                bench.save(3)
            assert bench.end() is TrialState.QUEUED
    assert bench.row.restarts == 0


def test_only_further_checkpoints_reset_the_preemption_count(store: Store) -> None:
    """They must be those of the run itself and lie past the batch where it began."""
    bench = Bench(store)
    bench.begin(outcome=Outcome.PREEMPTED)
    bench.save(3)
    bench.end()
    for _ in range(6):
        bench.begin(outcome=Outcome.PREEMPTED)
        bench.end()
    assert bench.row.restarts == 1  # the checkpoint was the first run's
    for _ in range(2):
        bench.begin(outcome=Outcome.PREEMPTED)
        bench.save(0)
        bench.end()
    assert bench.row.restarts == 3


def test_blocked_machine_pauses_the_trial_and_keeps_it_resumable(store: Store) -> None:
    bench = Bench(store)
    assert bench.ends(Outcome.BLOCKED, message="the disk is full") is TrialState.PAUSED
    assert (bench.live.blocked, bench.failures.mistake, bench.failures.resumable) == (
        True,
        True,
        True,
    )
    assert bench.failures.messages == ["trial 1: the disk is full"]
    assert bench.row.exit_reason == "the disk is full"
    assert bench.live.plan.exited is None
    assert bench.state.queue.first is not bench.live


def test_a_mistake_is_not_tried_again(store: Store) -> None:
    bench = Bench(store)
    assert (
        bench.ends(Outcome.MISTAKE, message="no such layer", traceback="Traceback ...")
        is TrialState.ERROR
    )
    assert (bench.failures.mistake, bench.failures.resumable, bench.failures.traceback) == (
        True,
        False,
        "",
    )
    assert bench.failures.messages == ["trial 1: no such layer"]
    assert bench.row.exit_reason == "no such layer"
    assert bench.live.plan.exited is Exit.ERRORED


def test_error_is_retried_max_restarts_times_then_shown(store: Store) -> None:
    """Only the last error is shown."""
    bench = Bench(store, max_restarts=2)
    for attempt in range(2):
        assert bench.ends(Outcome.ERROR, message="oh", progressed_to=attempt) is TrialState.QUEUED
    assert bench.row.restarts == 2
    assert not bench.failures.messages
    assert (
        bench.ends(Outcome.ERROR, message="oh", traceback="Traceback: oh", progressed_to=2)
        is TrialState.ERROR
    )
    assert bench.row.restarts == 2
    assert (bench.failures.messages, bench.failures.traceback) == (["trial 1: oh"], "Traceback: oh")
    assert not bench.failures.mistake


def test_error_repeated_at_one_batch_is_not_retried_again(store: Store) -> None:
    bench = Bench(store)
    assert bench.ends(Outcome.ERROR, message="oh", progressed_to=7) is TrialState.QUEUED
    assert bench.ends(Outcome.ERROR, message="oh", progressed_to=7) is TrialState.ERROR


def test_a_process_that_dies_at_one_place_again_is_tried_again(store: Store) -> None:
    """As it may have been killed from outside."""
    bench = Bench(store)
    for _ in range(5):
        assert bench.ends(None, status=-9, progressed_to=7) is TrialState.QUEUED
    assert bench.ends(None, status=-9, progressed_to=7) is TrialState.ERROR


def test_restarts_without_progress_are_spaced_wider_each_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, pauses = Bench(store, max_restarts=9), list[float]()
    bench.endings = Endings(bench.state, bench.failures, RESTART_SECONDS)
    monkeypatch.setattr(bench.state, "hold", lambda live, seconds: pauses.append(seconds))
    for reached in (7, 7, 7, 7, 7, 8, 8):
        assert bench.ends(None, status=-9, progressed_to=reached) is TrialState.QUEUED
    assert pauses == [1, 4, 15, 60, 60, 1, 4]


def test_what_was_killed_because_it_was_asked_for_has_not_failed(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    bench.state.target_state = ExperimentState.PAUSED
    assert bench.ends(None, status=-9) is TrialState.PAUSED
    assert bench.ends(Outcome.ERROR, message="oh") is TrialState.ERROR  # this was no kill


def test_a_failure_of_a_trial_that_its_searcher_closed_is_none(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    bench.begin(outcome=Outcome.ERROR, message="oh")
    bench.reach()
    assert bench.end() is TrialState.COMPLETED
    assert not bench.failures.messages


@pytest.mark.parametrize(
    ("line", "becomes"), [("CUDA error: gone", "ERROR"), ("all is well", "QUEUED")]
)
def test_a_line_of_the_logs_may_say_that_trying_again_is_no_use(
    store: Store, line: str, becomes: str
) -> None:
    policies = [{"pattern": "CUDA", "action": "cancel_retries"}, {"pattern": "well"}]
    bench = Bench(store, log_policies=policies)
    active = bench.begin(outcome=Outcome.ERROR, message="oh")
    active.run.log_dir.mkdir(parents=True)
    active.run.log_dir.joinpath("rank-0.log").write_text("nothing\n")
    active.run.log_dir.joinpath("rank-1.log").write_text(f"one\n{line}\ntwo\n")
    assert str(bench.end()) == becomes


@pytest.mark.parametrize(
    ("status", "log", "message", "words"),
    [
        (3, "", "the process exited with status 3", ""),
        (
            3,
            "first\nlast\n",
            "the process exited with status 3",
            "det: trial 1 wrote last:\nfirst\nlast",
        ),
        (
            1,
            "x\nTraceback (most recent call last):\n  line\nValueError: oh\n",
            "the process exited with status 1: ValueError: oh",
            "Traceback (most recent call last):\n  line\nValueError: oh",
        ),
        (
            -11,
            "Traceback (most recent call last):\n  line\nValueError: oh\n",
            (
                "the process was killed by SIGSEGV: compiled code crashed; with"
                " PYTHONFAULTHANDLER=1 the log says where"
            ),
            "Traceback (most recent call last):\n  line\nValueError: oh",
        ),
        (
            0,
            "never shown\n",
            (
                "the process ended before the trial was complete; return from its methods, and let"
                " det end it"
            ),
            "",
        ),
    ],
)
def test_a_process_without_a_last_word_is_quoted_by_its_log(
    store: Store, status: int, log: str, message: str, words: str
) -> None:
    bench = Bench(store, max_restarts=0)
    active = bench.begin()
    if log:
        active.run.log_dir.mkdir(parents=True)
        active.run.log_dir.joinpath("rank-0.log").write_text(log)
    assert bench.end(status) is TrialState.ERROR
    assert (bench.row.exit_reason, bench.failures.traceback) == (message, words)
    assert reason_of(bench.live, active, status) == message


def test_of_a_long_log_the_end_is_quoted(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    active = bench.begin()
    active.run.log_dir.mkdir(parents=True)
    active.run.log_dir.joinpath("rank-0.log").write_text("x" * 200_000 + "\nthe last line\n")
    bench.end(1)
    assert bench.failures.traceback.endswith("\nthe last line")
    assert len(bench.failures.traceback) < 100_000


def test_what_a_run_said_is_why_it_failed_whatever_its_log_holds(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    active = bench.begin(
        outcome=Outcome.ERROR, message="ValueError: oh", traceback="Traceback: its own"
    )
    active.run.log_dir.mkdir(parents=True)
    active.run.log_dir.joinpath("rank-0.log").write_text("something else\n")
    assert bench.end(1) is TrialState.ERROR
    assert (bench.row.exit_reason, bench.failures.traceback) == (
        "ValueError: oh",
        "Traceback: its own",
    )


# What is said of a run


@pytest.mark.parametrize(
    ("facts", "status", "outcome", "reason"),
    [
        ({"outcome": Outcome.COMPLETED}, 0, "completed", None),
        ({"outcome": Outcome.PREEMPTED}, 1, "preempted", None),
        ({"outcome": Outcome.USER_STOPPED}, 0, "user_stopped", None),
        ({"outcome": Outcome.ERROR, "message": "oh"}, 1, "error", "oh"),
        ({"unstarted": "no memory"}, 1, "not started: no memory", None),
        (
            {"message": "rank 1 exited with status 3"},
            1,
            "rank 1 exited with status 3",
            "rank 1 exited with status 3",
        ),
        (
            {},
            -9,
            *[
                "the process was killed by SIGKILL: most often the machine or its container had no"
                " memory left"
            ]
            * 2,
        ),
    ],
)
def test_how_a_run_ended_and_why_it_failed_is_said(
    store: Store, facts: dict[str, Any], status: int, outcome: str, reason: str | None
) -> None:
    bench = Bench(store)
    active = bench.begin(**facts)
    assert (outcome_of(active, status), reason_of(bench.live, active, status)) == (outcome, reason)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "exited with status 0"),
        (2, "exited with status 2"),
        (-1, "was killed by SIGHUP"),
        (128, "exited with status 128"),
        (-15, "was killed by SIGTERM"),
        (143, "was killed by SIGTERM"),
        (137, "was killed by SIGKILL: most often the machine or its container had no memory left"),
        (-250, "was killed by signal 250"),
        (250, "exited with status 250"),
    ],
)
def test_signals_are_named_also_as_shells_tell_of_them(status: int, said: str) -> None:
    assert how_it_ended(status) == said


# Of several ranks, the one that knows


def ranks(store: Store, **facts: Any) -> ActiveRun:
    bench = Bench(store, resources={"slots_per_trial": 2})
    live = bench.state.queue.first
    with bench.state.transaction():
        bench.state.begin(live, store.slots.lease(bench.state.id, 2, ["cpu:0", "cpu:1"]), 0)
    for name, value in facts.items():
        setattr(live.active, name, value)
    return live.active


def test_first_rank_failure_counts_unless_it_is_a_lost_peer(store: Store) -> None:
    active = ranks(store)
    active.finished(1, Finished(Outcome.PEER_LOST, "a peer is gone", "trace 1"))
    assert (active.outcome, active.message) == (Outcome.PEER_LOST, "a peer is gone")
    active.finished(2, Finished(Outcome.PEER_LOST, "so it is", ""))
    assert active.message == "a peer is gone"
    active.finished(0, Finished(Outcome.ERROR, "oh", "trace 0"))
    active.finished(3, Finished(Outcome.ERROR, "late", "trace 3"))
    assert (active.outcome, active.message, active.traceback) == (Outcome.ERROR, "oh", "trace 0")
    assert active.spoken == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("facts", "rank", "status", "counts"),
    [
        ({}, 1, 3, True),
        ({}, 1, 0, False),
        ({"spoken": {1}}, 1, 3, False),
        ({"launched": True}, 1, 3, False),
        ({"outcome": Outcome.PEER_LOST}, 1, 3, True),
        ({"outcome": Outcome.ERROR}, 1, 3, False),
        ({"outcome": Outcome.ERROR}, 1, -signal.SIGKILL, True),
        ({"outcome": Outcome.COMPLETED}, 1, -signal.SIGKILL, False),
        ({"outcome": Outcome.PREEMPTED}, 1, -signal.SIGKILL, False),
    ],
)
def test_silently_dead_rank_is_the_cause_of_what_others_report(
    store: Store, facts: dict[str, Any], rank: int, status: int, counts: bool
) -> None:
    active = ranks(store, message="another's", traceback="another's", **facts)
    active.ended(rank, status)
    if counts:
        assert (active.outcome, active.traceback) == (None, "")
        assert active.message == f"rank {rank} {how_it_ended(status)}"
    else:
        assert (active.outcome, active.message) == (facts.get("outcome"), "another's")


def test_run_that_was_fenced_counts_as_preempted(store: Store) -> None:
    active = Bench(store).begin()
    active.ended(0, -signal.SIGKILL, fenced=True)
    assert (active.outcome, active.message) == (Outcome.PREEMPTED, "")


def test_a_run_of_one_rank_is_judged_by_its_process(store: Store) -> None:
    active = Bench(store).begin()
    active.ended(0, 3)
    assert (active.outcome, active.message) == (None, "")


# What becomes of the experiment


@pytest.mark.parametrize(("now", "patience"), [(False, None), (True, 0.0)])
def test_canceled_trial_ends_at_once_and_its_run_is_stopped(
    store: Store, now: bool, patience: float | None
) -> None:
    """The run is preempted or killed, and the search goes on without the trial."""
    bench, asked = Bench(store), list[tuple[Any, ...]]()
    bench.begin()
    bench.endings.cancel_trial(bench.live.id, now, lambda *what: asked.append(what))
    assert asked == [(bench.live, "the trial is canceled", patience)]
    assert (bench.live.plan.exited, bench.row.exit_reason) == (Exit.USER_STOPPED, "it was canceled")
    assert [live.plan.exited for live in bench.state.open.values()] == [
        None,
        None,
    ], "the search goes on without it"
    events = bench.state.search.over, len([*store.journal.read(bench.state.id)])
    assert bench.end(1) is TrialState.CANCELED, "whatever becomes of its run"
    assert (bench.state.search.over, len([*store.journal.read(bench.state.id)])) == events
    assert bench.failures == ExperimentFailures()


def test_a_trial_without_a_run_that_is_given_up_asks_nobody(store: Store) -> None:
    bench = Bench(store)
    live = bench.state.trials[1]
    bench.endings.cancel_trial(live.id, False, pytest.fail)
    assert (live.plan.exited, bench.state.row(live).state) == (
        Exit.USER_STOPPED,
        TrialState.CANCELED,
    )
    bench.endings.cancel_trial(live.id, False, pytest.fail)
    assert [*bench.state.open] == [0, 2]


def test_an_experiment_is_complete_where_one_of_its_trials_is(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    bench.begin(outcome=Outcome.COMPLETED)
    bench.reach()
    bench.end()
    bench.ends(Outcome.ERROR, message="oh")
    bench.ends(Outcome.MISTAKE, message="oh")
    assert bench.endings.final_state() is ExperimentState.COMPLETED


def test_experiment_whose_trials_were_all_canceled_is_canceled(store: Store) -> None:
    bench = Bench(store)
    while bench.state.open:
        assert bench.endings.final_state() is not ExperimentState.CANCELED
        bench.endings.cancel_trial(next(iter(bench.state.open.values())).id, False, pytest.fail)
    assert len(bench.state.trials) == 3
    assert bench.endings.final_state() is ExperimentState.CANCELED


def test_an_experiment_whose_trials_all_failed_has_failed(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    for _ in range(3):
        bench.ends(Outcome.ERROR, message="oh")
    assert bench.endings.final_state() is ExperimentState.ERROR
    assert bench.failures.reason == "trial 1: oh; trial 2: oh; trial 3: oh"


def test_declined_trials_are_the_reason_if_none_failed(store: Store) -> None:
    bench = Bench(store, SINGLE, max_restarts=0)
    bench.ends(Outcome.INVALID_HP, message="too wide")
    assert bench.endings.final_state() is ExperimentState.ERROR
    assert bench.failures.reason == "trial 1: too wide"
    bench.failures.messages = ["trial 2: oh"]
    assert bench.endings.final_state() is ExperimentState.ERROR
    assert bench.failures.reason == "trial 2: oh"


@pytest.mark.parametrize(
    ("searcher", "metrics", "state", "said"),
    [
        (SINGLE, {"loss": 1.0}, "COMPLETED", ""),
        (
            SINGLE,
            {"acc": 1.0, "batches": 10},
            "COMPLETED",
            "validations reported acc; report it, or name one of those",
        ),
        (
            *(SINGLE, {"loss": float("nan")}, "ERROR"),
            "it was never a number, NaN each time; lower the learning rate, or clip gradients",
        ),
        (
            SINGLE,
            {"loss": "good"},
            "ERROR",
            "it was never a number, but text, such as 'good'; report a number",
        ),
        (RANDOM, {"lss": 1.0}, "ERROR", "validations reported lss; did you mean 'lss'?"),
        (
            RANDOM,
            {"epochs": 1.0},
            "ERROR",
            "validations reported nothing; report it, or name one of those",
        ),
    ],
)
def test_a_metric_by_which_no_trial_can_be_ranked_is_named(
    store: Store, searcher: dict[str, Any], metrics: dict[str, float], state: str, said: str
) -> None:
    """A single trial is ranked among nobody, but is to have had numbers."""
    bench = Bench(store, searcher)
    active = bench.begin(outcome=Outcome.USER_STOPPED)
    with bench.state.transaction():
        bench.state.reported(bench.live, active, "validation", 10, metrics)
    bench.end()
    assert str(bench.endings.final_state()) == state
    assert bench.failures.reason == (
        f"no trial has a usable 'loss' (searcher.metric): {said}" if said else ""
    )
    assert bool(bench.failures.messages) is (state == "ERROR")
    assert bench.failures.mistake is (bool(said) and "loss" not in metrics)


@pytest.mark.parametrize(("searcher", "state"), [(SINGLE, "COMPLETED"), (RANDOM, "ERROR")])
def test_script_without_validations_completes_in_single_search(
    store: Store, searcher: dict[str, Any], state: str
) -> None:
    """Even then it is said."""
    bench = Bench(store, searcher, entrypoint="python3 train.py")
    bench.ends(None)
    assert str(bench.endings.final_state()) == state
    assert (
        bench.failures.reason
        == "no trial has a usable 'loss' (searcher.metric): no validation was reported; report it"
        " with report_validation_metrics()"
    )


def test_a_trial_that_reported_no_metric_among_others_is_named(store: Store) -> None:
    bench = Bench(store, entrypoint="python3 train.py")
    bench.begin(outcome=Outcome.COMPLETED)
    bench.reach()
    bench.end()
    bench.ends(None)
    assert bench.endings.final_state() is ExperimentState.COMPLETED
    assert bench.failures.notices == [
        "no number was reported for 'loss' (searcher.metric) by trial 2"
    ]


def test_search_lists_the_trials_it_went_on_without(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    bench.ends(Outcome.ERROR, message="oh")
    bench.begin(outcome=Outcome.COMPLETED)
    bench.reach()
    bench.end()
    assert bench.endings.final_state() is ExperimentState.COMPLETED
    assert bench.failures.notices == ["trial 1 failed, and the search went on without it"]


# A script is judged by what it said and by its exit status


SCRIPT = {"entrypoint": "python3 train.py"}
PIPED = {"entrypoint": "python3 train.py | tee log"}


@pytest.mark.parametrize(
    "said", [Outcome.ERROR, Outcome.MISTAKE, Outcome.BLOCKED, Outcome.OUT_OF_MEMORY]
)
def test_script_that_catches_its_failure_and_exits_0_is_complete(
    store: Store, said: Outcome
) -> None:
    bench = Bench(store, **SCRIPT)
    assert bench.ends(said, 0, message="oh") is TrialState.COMPLETED
    assert not bench.failures.messages


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (3, "a rank exited with status 3"),
        (1, "rank 1 is gone"),
        (128 + signal.SIGTERM, "rank 1 is gone"),
    ],
)
def test_status_of_a_launcher_tells_how_the_lost_rank_ended(
    store: Store, status: int, message: str
) -> None:
    bench = Bench(store, **SCRIPT, max_restarts=0)
    bench.ends(Outcome.PEER_LOST, status, message="rank 1 is gone")
    assert bench.failures.messages == [f"trial 1: {message}"]


@pytest.mark.parametrize(
    ("entrypoint", "becomes"),
    [
        ("python3 train.py --lr 1", TrialState.COMPLETED),
        (["python3", "train.py"], TrialState.COMPLETED),
        ("python3 train.py | tee log", TrialState.ERROR),
        ("python3 train.py; echo done", TrialState.ERROR),
        ("bash train.sh", TrialState.ERROR),
    ],
)
def test_sys_exit_that_python_alone_caught_is_no_failure(
    store: Store, entrypoint: str | list[str], becomes: TrialState
) -> None:
    bench = Bench(store, entrypoint=entrypoint, max_restarts=0)
    assert bench.ends(Outcome.COMPLETED, 0, exit_status=2) is becomes


@pytest.mark.parametrize("order", [1, -1])
def test_rank_that_called_sys_exit_is_named_as_the_cause(store: Store, order: int) -> None:
    bench = Bench(store, **SCRIPT, max_restarts=0, resources={"slots_per_trial": 2})
    bench.live = bench.state.queue.first
    with bench.state.transaction():
        lease = store.slots.lease(bench.state.id, 2, ["cpu:0", "cpu:1"])
        bench.state.begin(bench.live, lease, 0)
    words = [
        (0, Finished(Outcome.PEER_LOST, "rank 1 is gone", uncaught=True)),
        (1, Finished(Outcome.COMPLETED, status=3)),
    ]
    for rank, word in words[::order]:
        bench.live.active.finished(rank, word)
    assert bench.end(1) is TrialState.ERROR
    assert bench.failures.messages == ["trial 1: rank 1 exited with status 3"]


def test_a_failure_that_left_the_script_counts_despite_status_0(store: Store) -> None:
    """A shell around the script ends with 0. The first report may come before the connection ends."""
    bench = Bench(store, **SCRIPT, max_restarts=0)
    active = bench.begin(acked={1: 1})
    active.finished(0, Finished(Outcome.ERROR, "oh"), 1)
    active.finished(0, Finished(Outcome.ERROR, "oh", uncaught=True), 2)
    # Another rank, which has said nothing before, only knows that it is alone.
    active.finished(1, Finished(Outcome.PEER_LOST, "rank 0 is lost"), 3)
    assert bench.end(0) is TrialState.ERROR
    assert bench.failures.messages == ["trial 1: oh"]


def test_a_failure_after_completion_counts_despite_status_0(store: Store) -> None:
    bench = Bench(store, **SCRIPT, max_restarts=0)
    active = bench.begin(acked={1: 1})
    active.finished(0, Finished(Outcome.COMPLETED), 1)
    active.finished(0, Finished(Outcome.ERROR, "the export fails", uncaught=True), 2)
    assert bench.end(0) is TrialState.ERROR


@pytest.mark.parametrize(
    "failed",
    [Finished(Outcome.ERROR, "oh", uncaught=True), Finished(Outcome.COMPLETED, status=3)],
)
def test_a_second_attempt_of_a_shell_replaces_a_failed_one(store: Store, failed: Finished) -> None:
    bench = Bench(store, **SCRIPT)
    active = bench.begin(acked={1: 1})
    active.finished(0, failed, 1)
    active.finished(0, Finished(Outcome.COMPLETED), 2)
    assert bench.end(0) is TrialState.COMPLETED


@pytest.mark.parametrize(("status", "becomes"), [(3, TrialState.ERROR), (143, TrialState.QUEUED)])
def test_status_that_a_script_exits_with_counts_behind_a_shell(
    store: Store, status: int, becomes: TrialState
) -> None:
    bench = Bench(store, **PIPED, max_restarts=0)
    assert bench.ends(Outcome.COMPLETED, 0, exit_status=status) is becomes


RAISED = 'Traceback (most recent call last):\n  File "a.py", line 1\nImportError: no b\n'


@pytest.mark.parametrize(
    ("log", "becomes"),
    [
        (RAISED, TrialState.ERROR),
        (RAISED + "  it goes on\nwithout b\n", TrialState.COMPLETED),
        ("", TrialState.COMPLETED),
    ],
)
def test_unconnected_script_that_ends_with_a_traceback_failed(
    store: Store, log: str, becomes: TrialState
) -> None:
    bench = Bench(store, **PIPED, max_restarts=0)
    active = bench.begin()
    active.run.log_dir.mkdir(parents=True, exist_ok=True)
    (active.run.log_dir / "rank-0.log").write_text(log)
    assert bench.end(0) is becomes
    if log == RAISED:
        assert bench.failures.messages == ["trial 1: ImportError: no b"]


@pytest.mark.parametrize(
    ("asked", "becomes"),
    [
        ({"preempting": True}, TrialState.QUEUED),
        ({"preempted": True}, TrialState.QUEUED),
        ({}, TrialState.COMPLETED),
        ({"preempting": True, "progressed_to": 10}, TrialState.COMPLETED),
        ({"preempting": True, "own_handler": False}, TrialState.COMPLETED),
    ],
)
def test_script_with_own_sigterm_handler_goes_on_after_a_pause(
    store: Store, asked: dict[str, Any], becomes: TrialState
) -> None:
    """It saves and exits with status 0, which means its end only where nobody asked for it."""
    bench = Bench(store, **SCRIPT)
    facts = {"own_handler": True, "progressed_to": 4} | asked
    assert bench.ends(Outcome.COMPLETED, 0, **facts) is becomes


def test_a_script_whose_searcher_wants_no_more_is_complete(store: Store) -> None:
    bench = Bench(store, **SCRIPT)
    bench.begin(outcome=Outcome.COMPLETED, own_handler=True, preempting=True)
    bench.reach()
    assert bench.end() is TrialState.COMPLETED


def test_script_that_exits_with_the_status_of_sigterm_goes_on(store: Store) -> None:
    bench = Bench(store, **SCRIPT, max_restarts=0)
    assert bench.ends(Outcome.COMPLETED, 143) is TrialState.QUEUED


def test_a_script_that_fails_after_it_came_to_its_end_has_failed(store: Store) -> None:
    bench = Bench(store, **SCRIPT, max_restarts=0)
    assert bench.ends(Outcome.COMPLETED, 3) is TrialState.ERROR
    assert bench.failures.messages == ["trial 1: the process exited with status 3"]


def test_refused_message_is_a_failure_despite_exit_status_0(store: Store) -> None:
    bench = Bench(store, **SCRIPT)
    assert (
        bench.ends(Outcome.MISTAKE, 0, message="it could not be taken", refused=True)
        is TrialState.ERROR
    )


def test_a_script_that_fails_to_save_for_a_pause_has_failed(store: Store) -> None:
    bench = Bench(store, **SCRIPT)
    active = bench.begin(preempting=True)
    active.finished(0, Finished(Outcome.PREEMPTED))
    active.finished(0, Finished(Outcome.BLOCKED, "the disk is full"))
    assert bench.end(1) is TrialState.PAUSED
    assert bench.failures.messages == ["trial 1: the disk is full"]


@pytest.mark.parametrize("status", [-signal.SIGTERM, 128 + signal.SIGTERM])
def test_what_sigterm_ended_was_preempted(store: Store, status: int) -> None:
    bench = Bench(store, **SCRIPT, max_restarts=0)
    assert bench.ends(None, status) is TrialState.QUEUED
    assert bench.row.restarts == 0


def test_a_script_that_ends_early_without_a_message_has_failed(store: Store) -> None:
    """`os._exit(0)` does that; one that never connected is judged by its exit status alone."""
    bench = Bench(store, **SCRIPT, max_restarts=0)
    assert bench.ends(None, 0, acked={1: 2}, progressed_to=5) is TrialState.ERROR
    assert "ended with status 0 at batch 5, before searcher.max_length" in bench.row.exit_reason
    assert bench.ends(None, 0) is TrialState.COMPLETED


def test_unconnected_script_that_ends_on_request_is_preempted(store: Store) -> None:
    bench = Bench(store, **SCRIPT)
    bench.state.target_state = ExperimentState.PAUSED
    assert bench.ends(None, 0, preempting=True) is TrialState.PAUSED


def test_awaited_storage_outage_is_no_failure_of_the_trial(store: Store) -> None:
    bench = Bench(store, max_restarts=0)
    assert bench.ends(Outcome.UNREACHABLE, 2, message="no route", waits=True) is TrialState.QUEUED
    assert (bench.row.restarts, bench.failures.messages) == (0, [])
    assert bench.ends(Outcome.UNREACHABLE, 2, message="no route") is TrialState.PAUSED
    assert (bench.failures.messages, bench.failures.resumable) == (["trial 1: no route"], True)


@pytest.mark.parametrize(
    ("log", "status", "most"),
    [
        ("Traceback (most recent call last):\n  line\nKeyError: 'x'\n", 1, 2),
        ("Traceback (most recent call last):\n  line\nOSError: /tmp/x{0}: pid {0}\n", 1, 2),
        ("", 3, 3),
        ("", -signal.SIGSEGV, 3),
        ("sh: 1: pyton3: not found\n", 127, 1),
    ],
)
def test_process_that_dies_alike_without_progress_is_given_up(
    store: Store, log: str, status: int, most: int
) -> None:
    bench = Bench(store, max_restarts=9)
    for attempt in range(most):
        active = bench.begin()
        active.run.log_dir.mkdir(parents=True, exist_ok=True)
        active.run.log_dir.joinpath("rank-0.log").write_text(log.format(attempt))
        assert bench.end(status) is (TrialState.ERROR if attempt == most - 1 else TrialState.QUEUED)


@pytest.mark.parametrize(("name", "ends"), [("random", True), ("grid", False)])
def test_search_of_only_invalid_trials_ends_with_a_message(
    store: Store, name: str, ends: bool
) -> None:
    """A grid comes to its end."""
    searcher = {"name": name, "metric": "loss", "max_length": 10}
    if name == "random":
        searcher |= {"max_trials": 2, "max_concurrent_trials": 2}
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1, "count": 60}}
    bench, said = Bench(store, searcher, hyperparameters=space), []
    for _ in range(40):
        active, bench.live.active = (
            bench.begin(outcome=Outcome.INVALID_HP, message="too wide"),
            None,
        )
        store.slots.release(active.lease)
        with bench.state.transaction():
            said.append(bench.endings.finish_run(bench.live, active, 0))
    assert [number for number, why in enumerate(said, 1) if why] == ([20, 40] if ends else [])
    if ends:
        assert (
            said[19]
            == "the hyperparameters of 20 trials in a row are invalid (InvalidHP), the last one"
            " saying: too wide; narrow their ranges"
        )


def test_reason_names_three_distinct_failures_and_counts_others() -> None:
    failures = ExperimentFailures(messages=["a", "b", "a", "c"], notices=["n"])
    assert failures.reason == "a; b; c"
    failures.messages += ["d", "e"]
    assert failures.reason == "a; b; c; 2 more"
    assert ExperimentFailures(notices=["n"]).reason == "n"
    assert ExperimentFailures().reason == ""

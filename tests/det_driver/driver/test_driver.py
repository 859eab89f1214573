"""What a driver does in which order: it hears, commits, and then acts.

And what it leaves, however it comes to its end.
"""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

import pytest

from det_core import EngineRecord, Outcome, Plugins, hookimpl
from det_core.checkpoint.manifest import Manifest
from det_core.config import parse, to_json
from det_core.train.environ import WorkerEnv
from det_core.train.run_setup import Spooled, encode_note
from det_driver.driver import Driver, DriverSettings, _driver
from det_driver.driver._lifecycle import CANCEL_TRIAL, STEER
from det_driver.driver._search import SearchStarted, SearchSteered, TrialExited, decode_event
from det_driver.engines import Ended, Engine, EngineContext, NodeJoined, NodeLost, WorkerMessage
from det_driver.store import DESCRIBE_COMMAND, ExperimentState, Store, Wakeups, boot_id
from det_node import protocol
from det_node.agent import RunSpec
from det_node.process import note_process
from det_node.protocol import (
    AskBest,
    Checkpointed,
    Completed,
    Deleted,
    Envelope,
    Finished,
    Progressed,
    Reported,
    Validated,
)

RANDOM = {
    "name": "random",
    "metric": "loss",
    "max_trials": 2,
    "max_length": 10,
    "max_concurrent_trials": 0,
}
HALVING = {
    "name": "async_halving",
    "metric": "loss",
    "num_rungs": 2,
    "max_trials": 2,
    "max_length": 40,
    "divisor": 4,
}
SINGLE = {"name": "single", "metric": "loss", "max_length": 10}
FEW_KEPT = {
    "type": "shared_fs",
    "save_experiment_best": 0,
    "save_trial_best": 0,
    "save_trial_latest": 0,
}
CLOSED, PAUSE = "the searcher closed the trial", "the experiment is paused"

Call = tuple[Any, ...]
Reaction = Any  # what is heard then, or something to be called


class Stage(Engine):
    """Runs without processes.

    What is heard of them when the engine is told something is a test's to say.
    """

    def __init__(self, on_event: Any) -> None:
        super().__init__(on_event)
        self.calls: list[Call] = []
        self.reactions: dict[Call, list[Reaction]] = {}
        self.found: tuple[RunSpec, ...] = ()
        self.specs: list[RunSpec] = []
        self.frames: list[list[Call]] = []
        self.together = self.frame

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Note what is said inside as said together."""
        before = len(self.calls)
        yield
        self.frames.append(self.calls[before:])

    def record_call(self, *call: Any) -> None:
        self.calls.append(call)
        for reaction in self.reactions.pop(call, ()):
            reaction() if callable(reaction) else self.on_event(reaction)

    def open(self, context: EngineContext) -> tuple[RunSpec, ...]:
        self.record_call("open", context.name)
        return self.found

    def want(self, runs: int, slots: int) -> None:
        self.record_call("want", runs, slots)

    def start(self, spec: RunSpec) -> None:
        self.specs.append(spec)
        self.record_call("start", spec.run_id)

    def signal(self, run: int, number: Signals) -> None:
        self.record_call("signal", run, number)

    def preempt(self, run: int, reason: str) -> None:
        self.record_call("preempt", run, reason)

    def reply(self, run: int, link: int, reply: protocol.Reply) -> None:
        self.record_call("reply", run, reply.number, reply.error)

    def acknowledge(self, run: int, link: int, number: int) -> None:
        self.record_call("acknowledge", run, number)

    def acknowledge_end(self, run: int) -> None:
        self.record_call("acknowledge_end", run)

    def end_runs(self) -> None:
        self.record_call("let go")

    def close(self) -> None:
        self.record_call("close")


class Observer:
    """Notes what it is told of an experiment."""

    def __init__(self) -> None:
        self.told: list[Call] = []

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        self.told.append(("started",))

    @hookimpl
    def det_run_finished(self, trial: Any, run: Any, outcome: str) -> None:
        self.told.append(("run", trial.id, run.id, run.outcome, outcome))

    @hookimpl
    def det_experiment_finished(self, state: str) -> None:
        self.told.append(("finished", state))


class Play:
    """An experiment, and the next driver of it, whose engine reacts as a test says."""

    restarts, outage = (0.0,), 0.0

    def __init__(
        self, store: Store, searcher: dict[str, Any] = RANDOM, slots: int = 1, **settings: Any
    ) -> None:
        space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
        settings = {"max_restarts": 0, **settings}
        config = parse(
            {"entrypoint": "m:T", "hyperparameters": space, "searcher": searcher, **settings}
        ).config
        metric = {"metric": "loss", "smaller_is_better": True}
        self.store, self.slots = store, slots
        self.id = store.experiments.create(
            name="x", config=to_json(config), engine="stage", **metric
        ).id
        store.code_dir(self.id).mkdir()
        self.again()

    def again(self) -> None:
        """Let there be another driver."""
        self.observer, plugins = Observer(), Plugins.installed()
        plugins.register(self.observer, "looks")
        plugins.register(self, "stage")
        self.driver = Driver(
            DriverSettings(
                home=self.store.home,
                slots=self.slots,
                engine="stage",
                restarts=self.restarts,
                outage=self.outage,
            ),
            self.id,
            plugins,
        )
        assert isinstance(self.driver.engine, Stage)
        self.engine = self.driver.engine

    @hookimpl
    def det_engines(self) -> Iterator[EngineRecord]:
        yield EngineRecord(name="stage", load=lambda: Stage)

    def when(self, *told: Any, then: list[Reaction]) -> None:
        """Let these be heard, or called, when the engine is next asked this for the first time."""
        self.engine.reactions[told] = then

    def killed_at(self, *told: Any) -> None:
        """Drive, in a process of its own, until the engine is told this.

        Then the driver is killed.
        """
        pid = os.fork()
        if not pid:
            try:
                self.when(*told, then=[lambda: os.kill(os.getpid(), SIGKILL)])
                self.driver.run()
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == SIGKILL
        self.again()

    def at_polls(self, *acts: list[Reaction]) -> None:
        """React so to each of the driver's next looks around.

        It has started all trials, and says so then.
        """
        if acts:
            self.when("want", 0, 1, then=[*acts[0], lambda: self.at_polls(*acts[1:])])

    def leave(self, run: int, uuid: str, batches: int) -> None:
        """Leave a checkpoint, as a run does without a driver."""
        (spool := self.store.experiment_dir(self.id) / "spool").mkdir(exist_ok=True)
        note = encode_note(Spooled(run, checkpoint(self, uuid, batches), "{}"))
        (spool / f"{uuid}.json").write_bytes(note)

    def command(self, kind: str, **args: Any) -> Callable[[], None]:
        return lambda: self.store.commands.send(self.id, kind, args)

    @property
    def row(self) -> Any:
        return self.store.experiments.get(self.id)

    @property
    def trials(self) -> list[str]:
        return [str(trial.state) for trial in self.store.trials.list(self.id)]

    @property
    def runs(self) -> list[tuple[str | None, str | None]]:
        """The outcome of each run, and the reason."""
        trials = self.store.trials.list(self.id)
        found = sorted(
            (run for trial in trials for run in self.store.runs.list(trial.id)),
            key=lambda run: run.id,
        )
        return [(run.outcome, run.reason) for run in found]

    @property
    def checkpoints(self) -> dict[str, str]:
        return {
            row.uuid: str(row.state) for row in self.store.checkpoints.list(experiment_id=self.id)
        }

    @property
    def expected(self) -> list[str]:
        return [path.name for path in (self.store.home / "garbage").glob("*")]

    def all(self, kind: str) -> list[Call]:
        """What the engine was told of this kind, in order."""
        return [told[1:] for told in self.engine.calls if told[0] == kind]


def says(run: int, number: int, word: protocol.Message) -> WorkerMessage:
    return WorkerMessage(run, 0, run, Envelope(number, word))


def completed(run: int, loss: float = 1.0, number: int = 1) -> WorkerMessage:
    return says(run, number, Completed(10, {"loss": loss}, 10))


def trains(run: int, loss: float = 1.0, first: int = 1) -> list[Reaction]:
    """What is heard of a run that goes well, from this word on."""
    return [
        completed(run, loss, first),
        says(run, first + 1, Finished(Outcome.COMPLETED)),
        Ended(run, 0),
    ]


def saves(run: int, number: int = 1) -> list[Reaction]:
    return [says(run, number, Finished(Outcome.PREEMPTED)), Ended(run, 0)]


def checkpoint(play: Play, uuid: str, batches: int = 5) -> Manifest:
    """The files of a checkpoint of the first trial."""
    (play.store.home / "checkpoints" / uuid).mkdir(parents=True)
    (play.store.home / "checkpoints" / uuid / "manifest.json").write_text(f'{{"uuid": "{uuid}"}}')
    return Manifest(uuid=uuid, framework="fake", batches=batches, trial_id=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


@pytest.fixture
def play(store: Store) -> Play:
    return Play(store)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver look around often."""
    monkeypatch.setattr(_driver, "_POLL_SECONDS", 0.01)


# Waiting for slots


@pytest.mark.parametrize("listens", [True, False])
def test_a_driver_that_waits_for_a_slot_is_woken(
    store: Store, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    """Without an address for it, it looks again by itself."""
    play = Play(store, SINGLE)
    monkeypatch.setattr(_driver, "_WAITING_SECONDS", 5.0)
    driver: Any = play.driver
    # What the engine had been asked when the driver looked around.
    looked: list[int] = []
    poll = driver._poll
    monkeypatch.setattr(driver, "_poll", lambda: (looked.append(len(play.engine.calls)), poll()))
    play.when("start", 1, then=trains(1))
    with Store(play.store.home) as other, ExitStack() as stack:
        if not listens:
            taken = Wakeups(play.store.home, play.id, lambda what: None)
            stack.enter_context(closing(taken))
        held = other.slots.lease(play.id + 1, 1, ["cpu:0"])
        assert held is not None

        def wait() -> None:
            # It asks for room once before it waits, and whenever it has looked around.
            if looked:
                other.slots.release(held)
            else:
                play.when("want", 1, 1, then=[wait])

        play.when("want", 1, 1, then=[wait])
        assert driver.run() is ExperimentState.COMPLETED
    started = play.engine.calls.index(("start", 1))
    freed = max(n for n, call in enumerate(play.engine.calls[:started]) if call == ("want", 1, 1))
    assert any(freed < at <= started for at in looked) is not listens


def test_a_driver_that_waits_is_woken_for_a_command(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 600.0
    monkeypatch.setattr(_driver, "_WAITING_SECONDS", waits)
    play = Play(store, SINGLE)
    driver: Any = play.driver
    take, sent = driver._take_events, []

    def take_events(seconds: float) -> None:
        if seconds == waits and not sent:
            sent.append("cancel")
            play.command("cancel")()
        take(seconds)

    monkeypatch.setattr(driver, "_take_events", take_events)
    with Store(play.store.home) as other:
        assert other.slots.lease(play.id + 1, 1, ["cpu:0"]) is not None
        assert driver.run() is ExperimentState.CANCELED
    assert sent == ["cancel"]


# From the first trial to the end


def test_a_search_is_driven_to_its_end_and_nothing_is_left_to_do(play: Play) -> None:
    before, driven = time.time(), []
    play.when("start", 1, then=[lambda: driven.append(play.row), *trains(1)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    (row,) = driven
    assert (row.state, row.pid, row.boot, row.det) == (
        "ACTIVE",
        os.getpid(),
        boot_id(),
        version("det-driver"),
    )
    assert (row.started >= before, row.ended, row.reason) == (True, None, None)
    over = play.row
    assert (over.state, over.pid, over.boot, over.progress, over.reason) == (
        "COMPLETED",
        None,
        None,
        1.0,
        None,
    )
    assert before <= over.started <= over.ended <= time.time()
    assert play.trials == ["COMPLETED", "COMPLETED"]
    assert play.runs == [("completed", None)] * 2
    runs = [("run", number, number, "completed", "completed") for number in (1, 2)]
    assert play.observer.told == [("started",), *runs, ("finished", "COMPLETED")]
    assert play.engine.calls[1:] == [
        ("want", 1, 1),  # before it is known for which trial
        ("start", 1),
        ("want", 1, 1),
        *(("reply", 1, 1, ""), ("reply", 1, 2, ""), ("acknowledge_end", 1)),
        ("start", 2),
        *(("reply", 2, 1, ""), ("reply", 2, 2, ""), ("acknowledge_end", 2)),
        ("close",),
    ]
    assert play.store.snapshots.read(play.id)
    assert play.store.slots.holders() == {}
    with play.store.lock(play.id):
        pass


def test_queued_events_are_committed_in_one_batch_then_answered(play: Play) -> None:
    seen = []
    play.when("start", 1, then=trains(1))
    play.when("reply", 1, 1, "", then=[lambda: seen.append((play.trials, play.runs))])
    play.when("start", 2, then=trains(2))
    play.driver.run()
    assert seen == [(["COMPLETED", "QUEUED"], [("completed", None)])]
    assert [
        ("reply", 1, 1, ""),
        ("reply", 1, 2, ""),
        ("acknowledge_end", 1),
    ] in play.engine.frames, "to each agent in one frame"


def test_what_a_word_closes_is_ended_with_it(store: Store) -> None:
    play, seen = Play(store, HALVING), list[Any]()
    play.when("start", 1, then=trains(1, 2.0))
    play.when("start", 2, then=[completed(2, 1.0)])
    play.when("reply", 2, 1, "", then=[lambda: seen.append(play.trials), *saves(2, 2)])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert seen == [["COMPLETED", "RUNNING"]]
    assert play.trials == ["COMPLETED", "COMPLETED"]


def test_trial_closed_by_its_searcher_is_preempted_only_once(store: Store) -> None:
    """A trial that a pause has preempted is not preempted again when it is closed."""
    play = Play(store, entrypoint="python3 train.py")
    play.when("start", 1, then=[completed(1)])
    play.when("preempt", 1, CLOSED, then=saves(1, 2))
    play.when("start", 2, then=[play.driver.pause])
    play.when("preempt", 2, PAUSE, then=[completed(2)])
    play.when("reply", 2, 1, "", then=saves(2, 2))
    assert play.driver.run() is ExperimentState.PAUSED
    assert play.all("preempt") == [(1, CLOSED), (2, PAUSE)]
    assert play.trials == ["COMPLETED", "COMPLETED"]
    events = [decode_event(event.data) for event in play.store.journal.read(play.id)]
    assert [event.trial for event in events if isinstance(event, TrialExited)] == [0, 1]


def test_trial_class_that_a_reply_stopped_is_not_preempted_too(play: Play) -> None:
    play.when("start", 1, then=trains(1))
    play.when("start", 2, then=[completed(2)])
    play.when("reply", 2, 1, "", then=[*saves(2, 2)])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.all("preempt") == []


def test_pause_preempts_a_trial_class_that_a_reply_stopped(store: Store) -> None:
    play = Play(store, HALVING, slots=2)
    play.when("start", 2, then=[completed(1, 2.0), play.driver.pause])
    play.when("preempt", 2, PAUSE, then=[*saves(1, 2), *saves(2)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert play.all("preempt") == [(1, PAUSE), (2, PAUSE)]


def test_what_is_asked_between_words_is_done_between_them(play: Play) -> None:
    """Whatever follows at once: what a run said before is taken before its end is."""
    words = [says(1, number, Reported("training", number, {})) for number in (1, 2, 3)]
    play.when("start", 1, then=[words[0], play.driver.pause, *words[1:]])
    play.when("preempt", 1, PAUSE, then=saves(1, 4))
    assert play.driver.run() is ExperimentState.PAUSED
    assert [report.batches for report in play.store.metrics.read(trial_id=1)] == [1, 2, 3]


def test_events_of_ended_or_unknown_runs_are_ignored(play: Play) -> None:
    """The end of such a run is acknowledged all the same."""
    late = [says(1, 3, Reported("training", 9, {})), Ended(1, 0)]
    play.when(
        "start", 1, then=[says(7, 1, Reported("training", 1, {})), Ended(7, 0), *trains(1), *late]
    )
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert [report.group for report in play.store.metrics.read(trial_id=1)] == ["validation"]
    assert sorted(play.all("acknowledge_end")) == [(1,), (1,), (2,), (7,)]


def test_a_trial_whose_run_failed_is_started_again(store: Store) -> None:
    play = Play(store, SINGLE, max_restarts=1)
    play.when("start", 1, then=[Ended(1, 3)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.runs == [
        ("the process exited with status 3", "the process exited with status 3"),
        ("completed", None),
    ]


def test_a_search_whose_trials_failed_says_why(play: Play) -> None:
    play.when("start", 1, then=[says(1, 1, Finished(Outcome.ERROR, "no such file")), Ended(1, 1)])
    play.when("start", 2, then=[Ended(2, -11)])
    assert play.driver.run() is ExperimentState.ERROR
    assert play.runs[0] == ("error", "no such file")
    assert (play.row.state, play.row.reason) == ("ERROR", play.driver.failures.reason)
    assert play.driver.failures.reason.startswith(
        "trial 1: no such file; trial 2: the process was killed by SIGSEGV"
    )
    assert play.observer.told[-1] == ("finished", "ERROR")


# Machines


def test_a_machine_that_joins_has_what_nobody_drives_ended(play: Play) -> None:
    play.when("start", 1, then=[NodeJoined("", (1, 7)), *trains(1)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.all("signal") == [(7, SIGKILL)]


def test_a_trial_whose_machine_is_lost_goes_on_elsewhere(store: Store) -> None:
    play = Play(store, SINGLE)
    play.when("start", 1, then=[NodeLost("")])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.runs == [("preempted", None), ("completed", None)]


# Checkpoints


def test_surplus_checkpoints_are_deleted_when_the_search_ends(store: Store) -> None:
    """A paused search may need any of them."""
    play = Play(store, checkpoint_storage=FEW_KEPT | {"host_path": str(store.home / "checkpoints")})
    play.when(
        "start", 1, then=[says(1, 1, Checkpointed(checkpoint(play, "a"), "{}")), play.driver.pause]
    )
    play.when("preempt", 1, PAUSE, then=saves(1, 2))
    play.driver.run()
    assert (play.checkpoints, play.expected) == (
        {"a": "COMPLETED"},
        [],
    )  # a paused one may need any of them
    play.again()
    play.when("start", 2, then=trains(2))
    play.when("start", 3, then=trains(3))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert (play.checkpoints, play.expected) == ({"a": "DELETED"}, [])


def test_next_driver_of_any_experiment_retries_failed_deletions(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    play = Play(store, checkpoint_storage=FEW_KEPT | {"host_path": str(store.home / "checkpoints")})
    named = Manifest(
        uuid="..", framework="fake", batches=5, trial_id=1
    )  # no storage takes that name
    play.when("start", 1, then=[says(1, 9, Checkpointed(named, "{}")), Ended(1, 1)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.expected == [str(play.id)]
    assert "det gc" in capsys.readouterr().err
    store.checkpoints.mark_deleted("..")
    other = Play(store, SINGLE)
    other.when("want", 1, 1, then=[out_of_disk])
    assert other.driver.run() is ExperimentState.PAUSED
    assert play.expected == []


def test_trial_resumes_from_the_last_checkpoint_of_a_killed_run(store: Store) -> None:
    """The checkpoint is in the spool, as its run died before it could report it."""
    play = Play(store, SINGLE, max_restarts=1)
    play.when("start", 1, then=[lambda: play.leave(1, "a", 7), Ended(1, -SIGKILL)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    variables = WorkerEnv.read(dict(play.engine.specs[1].variables))
    assert variables is not None
    assert (variables.latest_checkpoint, variables.steps_completed) == ("a", 7)


def test_a_killed_runs_end_is_taken_alone(store: Store) -> None:
    """What it left is taken up in a commit of its own, as the note of that is removed then."""
    play, seen = Play(store, SINGLE, max_restarts=1), list[Any]()
    play.when("start", 1, then=[says(1, 1, Validated(3, {"loss": 1.0}, None)), Ended(1, -SIGKILL)])
    play.when("reply", 1, 1, "", then=[lambda: seen.append(play.runs)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert seen == [[(None, None)]]


# What is wrong


def test_invalid_message_fails_only_its_own_run(play: Play) -> None:
    mistaken = "its message could not be handled"
    play.when("start", 1, then=[says(1, 1, Reported("training", 2**63, {}))])
    play.when("preempt", 1, mistaken, then=[Ended(1, 0)])
    play.when("start", 2, then=[says(2, 1, Deleted("nothing of the kind")), *trains(2, first=2)])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["ERROR", "COMPLETED"]
    (outcome, reason), _ = play.runs
    assert (outcome, play.driver.failures.mistake) == ("mistake", True)
    assert reason is not None
    assert reason.startswith("its message 'Reported' could not be handled: ")
    assert play.all("acknowledge") == [(1, 1)]
    assert play.all("preempt") == [(1, mistaken)]
    assert "nothing of the kind" in play.all("reply")[0][2]


def test_ended_run_with_an_invalid_message_is_not_preempted(play: Play) -> None:
    play.when("start", 1, then=[says(1, 1, Reported("training", 2**63, {})), Ended(1, 1)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.all("preempt") == []
    assert play.trials == ["ERROR", "COMPLETED"]


def fill(play: Play) -> None:
    """Let the experiment's database grow no more, as on a full disk.

    SQLite takes this for as many pages as there are.
    """
    play.driver._store._databases.held()._connection.execute("PRAGMA max_page_count = 1")


def test_full_disk_pauses_the_experiment_while_its_runs_save(play: Play) -> None:
    large = Validated(3, {"loss": 1.0, "note": "x" * 10**6}, None)
    play.when("start", 1, then=[lambda: fill(play), says(1, 1, large), Ended(1, 0)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert play.driver.failures.resumable
    (why,) = play.driver.failures.messages
    assert "full" in why
    assert (play.row.state, play.row.reason, play.row.pid) == ("PAUSED", why, None)
    assert play.engine.calls[-2:] == [("let go",), ("close",)]  # and no run is left to be killed
    play.again()
    play.when("start", 2, then=trains(2))
    play.when("start", 3, then=trains(3))
    assert play.driver.run() is ExperimentState.COMPLETED


def damage(play: Play) -> None:
    """Let the index of the best metrics be somewhere else in its database."""
    connection = play.driver._store._databases.held()._connection
    (version,) = connection.execute("PRAGMA schema_version").fetchone()
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name ="
        " 'journal') WHERE name = 'trials_by_metric'"
    )
    connection.execute(f"PRAGMA schema_version = {version + 1}")


def test_damaged_store_is_not_blamed_on_the_run_that_finds_it(store: Store) -> None:
    """And that is what is said, not what follows from it."""
    # A driver that checks trials first has read the best metric before.
    play = Play(store, check_first=False)
    play.when("start", 1, then=[lambda: damage(play), says(1, 1, AskBest()), says(1, 2, AskBest())])
    for told in (("reply", 1, 1, ""), ("let go",)):
        play.when(*told, then=[Ended(1, 0)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert (play.driver.failures.mistake, play.all("reply")) == (False, [])
    assert "experiment.db is damaged (" in play.row.reason


def out_of_disk() -> None:
    raise OSError(errno.ENOSPC, "the disk says no")


def test_a_disk_that_is_full_from_the_start_pauses_an_experiment(play: Play) -> None:
    play.when("want", 1, 1, then=[out_of_disk])
    assert play.driver.run() is ExperimentState.PAUSED
    why = "no agent can be started: the disk says no"
    assert (play.driver.failures.resumable, play.driver.failures.messages) == (True, [why])
    assert (play.row.state, play.row.reason) == ("PAUSED", why)
    assert play.engine.calls[-1] == ("close",)


def test_unexpected_error_fails_the_experiment_and_its_runs_save(play: Play) -> None:
    play.when("start", 1, then=[says(1, 1, Validated(3, {"loss": 1.0}, None)), Ended(1, -SIGKILL)])
    play.when("reply", 1, 1, "", then=[lambda: 1 // 0])
    with pytest.raises(ZeroDivisionError):
        play.driver.run()
    assert (play.row.state, play.row.pid) == ("ERROR", None)
    assert play.row.reason.startswith("ZeroDivisionError: ")
    assert play.engine.calls[-2:] == [("let go",), ("close",)]
    assert play.trials == ["PAUSED", "PAUSED"]
    play.again()
    play.when("start", 2, then=trains(2))
    play.when("start", 3, then=trains(3))
    assert play.driver.run() is ExperimentState.COMPLETED


# What fails


def test_unreachable_storage_is_awaited_without_using_a_restart(play: Play) -> None:
    play.restarts, play.outage = (0.01, 0.02), 600.0
    play.again()
    for run in (1, 2, 3):
        away = says(run, 1, Finished(Outcome.UNREACHABLE, "no route to the storage"))
        play.when("start", run, then=[away, Ended(run, 2)])
    play.when("start", 4, then=trains(4))
    play.when("start", 5, then=trains(5))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["COMPLETED", "COMPLETED"]
    assert [trial.restarts for trial in play.store.trials.list(play.id)] == [0, 0]
    assert [outcome for outcome, _ in play.runs] == ["unreachable"] * 3 + ["completed"] * 2


def test_long_storage_outage_ends_the_experiment_resumably(play: Play) -> None:
    play.when("start", 1, then=[says(1, 1, Finished(Outcome.UNREACHABLE, "no route")), Ended(1, 2)])
    assert play.driver.run() is ExperimentState.ERROR
    assert (play.trials, play.driver.failures.resumable) == (["PAUSED", "PAUSED"], True)
    assert play.row.reason == "trial 1: no route"


def test_trial_that_awaits_its_restart_frees_its_slot(store: Store) -> None:
    play = Play(store, max_restarts=1)
    play.restarts = (0.3,)
    play.again()
    play.when("start", 1, then=[says(1, 1, Finished(Outcome.ERROR, "oh")), Ended(1, 1)])
    play.when("start", 2, then=trains(2))
    play.when("start", 3, then=trains(3))
    assert play.driver.run() is ExperimentState.COMPLETED
    trials = store.trials.list(play.id)
    assert [[run.id for run in store.runs.list(trial.id)] for trial in trials] == [[1, 3], [2]]


def fails(run: int, message: str) -> list[Reaction]:
    return [says(run, 1, Finished(Outcome.ERROR, message)), Ended(run, 1)]


@pytest.mark.process
def test_search_ends_if_its_first_trials_all_fail_alike(store: Store) -> None:
    """The count of alike failures survives a killed driver."""
    play = Play(store, {**RANDOM, "max_trials": 12})
    for run in (1, 2):
        play.when("start", run, then=fails(run, "KeyError: 'x'"))
    play.killed_at("start", 3)
    play.when("start", 4, then=fails(4, "KeyError: 'x'"))
    assert play.driver.run() is ExperimentState.ERROR
    assert play.trials.count("ERROR") == 3
    assert (
        play.row.reason
        == "the first 3 trials failed alike before any had got anywhere: KeyError: 'x'; mend that"
    )
    assert play.driver.failures.resumable
    play.again()
    for run in (5, 6, 7):
        play.when("start", run, then=fails(run, "KeyError: 'x'"))
    assert play.driver.run() is ExperimentState.ERROR
    assert play.trials.count("ERROR") == 6


@pytest.mark.parametrize(
    ("message", "alike"),
    [
        ("ValueError: bad lr {0}.5e-3 at 0x7f{0} in /tmp/tmp{0}/x", True),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate {0} GiB", False),
        ("KeyError: '{1}'", False),
    ],
)
def test_failures_that_differ_only_in_numbers_are_alike(
    store: Store, message: str, alike: bool
) -> None:
    play = Play(store, {**RANDOM, "max_trials": 4}, max_restarts=0)
    for run in (1, 2, 3, 4):
        play.when("start", run, then=fails(run, message.format(run, "abcd"[run - 1])))
    assert play.driver.run() is ExperimentState.ERROR
    assert play.trials.count("ERROR") == (3 if alike else 4)


def test_search_with_some_success_goes_on_after_failed_trials(store: Store) -> None:
    play = Play(store, {**RANDOM, "max_trials": 5})
    play.when("start", 1, then=trains(1))
    for run in (2, 3, 4, 5):
        play.when("start", run, then=fails(run, "oh"))
    assert play.driver.run() is ExperimentState.COMPLETED


def test_unresponsive_script_gets_sigterm_before_sigkill(store: Store) -> None:
    """One with a handler of its own may know nothing else."""
    play = Play(store, SINGLE, entrypoint="python3 train.py", preemption_timeout=2)
    play.when("start", 1, then=[says(1, 1, protocol.Origin({})), play.command("pause")])
    play.when("signal", 1, SIGTERM, then=[says(1, 2, Finished(Outcome.PREEMPTED)), Ended(1, 0)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert play.all("signal") == [(1, SIGTERM)]
    assert not play.driver.failures.notices


def test_a_run_that_det_kills_is_said_to_be_killed_by_det(store: Store) -> None:
    play = Play(store, SINGLE, entrypoint="python3 train.py", preemption_timeout=1)
    play.when("start", 1, then=[says(1, 1, protocol.Origin({})), play.command("pause")])
    play.when("signal", 1, SIGKILL, then=[Ended(1, -SIGKILL)])
    assert play.driver.run() is ExperimentState.PAUSED
    why = "it was asked to save and end, and did not within 1 s (preemption_timeout)"
    assert play.runs == [(f"killed by det: {why}", None)]
    assert play.driver.failures.notices == [
        f"trial 1: det killed it, as {why}; it has no checkpoint"
    ]


# The next driver


def test_the_next_driver_goes_on_where_one_ended(play: Play) -> None:
    driven = list[Any]()
    play.when("start", 1, then=[says(1, 1, Finished(Outcome.BLOCKED, "no data")), Ended(1, 1)])
    assert play.driver.run() is ExperimentState.ERROR
    before = play.row
    assert (before.reason, play.driver.failures.resumable) == ("trial 1: no data", True)
    assert (play.trials, play.expected) == (
        ["PAUSED", "PAUSED"],
        [],
    )  # it may need any of its checkpoints
    play.again()
    play.when("start", 2, then=[lambda: driven.append((play.row, play.trials)), *trains(2)])
    play.when("start", 3, then=trains(3))
    assert play.driver.run() is ExperimentState.COMPLETED
    ((row, trials),) = driven
    assert (row.started, row.ended, row.reason, row.state) == (before.started, None, None, "ACTIVE")
    assert trials == ["RUNNING", "QUEUED"]
    events = [decode_event(event.data) for event in play.store.journal.read(play.id)]
    assert sum(isinstance(event, SearchStarted) for event in events) == 1


@pytest.mark.process
def test_run_that_outlives_its_driver_continues_with_the_next(play: Play) -> None:
    play.killed_at("start", 1)
    place = {
        "code_dir": play.store.code_dir(play.id),
        "log_dir": play.store.runs.list(1)[0].log_dir,
    }
    leased = {"slots": (0,), "devices": ("cpu:0",)}
    play.engine.found = (
        RunSpec(run_id=1, entrypoint="m:T", trial_class=True, variables={}, **place, **leased),
    )
    for event in trains(1):
        play.engine.on_event(event)
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.runs == [("completed", None)] * 2
    assert play.trials == ["COMPLETED", "COMPLETED"]


@pytest.mark.process
def test_what_a_killed_driver_left_is_taken_up(play: Play) -> None:
    """A checkpoint that was saved without a driver, and a trial that its searcher had closed."""
    play.when("start", 1, then=[completed(1)])
    play.killed_at("reply", 1, 1, "")
    play.leave(1, "a", 10)
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["COMPLETED", "COMPLETED"]
    assert play.runs == [("lost", None), ("completed", None)]
    assert play.checkpoints == {"a": "COMPLETED"}


@pytest.mark.process
def test_fully_trained_experiment_ends_with_its_next_driver(store: Store) -> None:
    play = Play(store, SINGLE)
    play.when("start", 1, then=[completed(1)])
    play.killed_at("reply", 1, 1, "")
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["COMPLETED"]


@pytest.mark.process
@pytest.mark.parametrize("words", [1, 2])
def test_leftover_process_may_save_unless_pause_is_sent_twice(
    play: Play, tmp_path: Path, words: int
) -> None:
    play.killed_at("start", 1)
    (run,) = play.store.runs.list(1)
    run.log_dir.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        ["sh", "-c", f"sleep 0.5; touch {tmp_path}/saved"], start_new_session=True
    ) as left:
        note_process(run.log_dir, left.pid)
        for _ in range(words):
            play.driver.pause()
        play.when("start", 2, then=[])
        play.when("preempt", 2, PAUSE, then=saves(2))
        assert play.driver.run() is ExperimentState.PAUSED
    assert (tmp_path / "saved").exists() == (words == 1)
    # It may be paused before there is a slot for another run.
    assert play.runs[0] == ("lost", None)


def test_what_was_asked_of_an_earlier_driver_is_no_longer_meant(play: Play) -> None:
    play.command("cancel")()
    play.when("start", 1, then=trains(1))
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert not play.store.commands.names(play.id)


def test_a_change_that_an_earlier_driver_left_is_made(play: Play) -> None:
    play.command(STEER, max_slots=2)()
    play.command(DESCRIBE_COMMAND, name="another")()
    play.when("start", 1, then=trains(1))
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    events = [decode_event(each.data) for each in play.store.journal.read(play.id)]
    assert SearchSteered(max_slots=2) in events
    assert play.row.name == "another"


# What people want


def test_a_pause_lets_runs_save_and_the_others_rest(play: Play) -> None:
    play.when("start", 1, then=[play.driver.pause])
    play.when("preempt", 1, PAUSE, then=saves(1))
    assert play.driver.run() is ExperimentState.PAUSED
    assert (play.row.state, play.row.pid, play.row.reason) == ("PAUSED", None, None)
    assert (play.trials, play.runs) == (["PAUSED", "PAUSED"], [("preempted", None)])
    assert play.observer.told[-1] == ("finished", "PAUSED")


def test_kill_leaves_runs_resumable_and_without_a_failure(play: Play) -> None:
    play.when("start", 1, then=[play.driver.kill])
    play.when("signal", 1, SIGKILL, then=[Ended(1, -SIGKILL)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert [reason for _, reason in play.runs] == [None]
    assert (play.trials, play.all("preempt")) == (["PAUSED", "PAUSED"], [])


def test_a_run_that_fails_as_it_is_asked_to_save_has_failed(play: Play) -> None:
    play.when("start", 1, then=[play.driver.pause])
    play.when(
        "preempt", 1, PAUSE, then=[says(1, 1, Finished(Outcome.ERROR, "no room")), Ended(1, 1)]
    )
    assert play.driver.run() is ExperimentState.PAUSED
    assert play.runs == [("error", "no room")]


@pytest.mark.usefixtures("soon")
def test_closed_trial_whose_run_does_not_end_is_no_failure(store: Store) -> None:
    """The run is killed."""
    play = Play(store, preemption_timeout=0)
    play.when("start", 1, then=[completed(1)])
    play.when("signal", 1, SIGKILL, then=[Ended(1, -SIGKILL)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert [reason for _, reason in play.runs] == [None, None]
    assert play.trials == ["COMPLETED", "COMPLETED"]


@pytest.mark.usefixtures("soon")
def test_a_trial_is_given_up_and_its_search_goes_on(play: Play) -> None:
    play.when("start", 1, then=[play.command(CANCEL_TRIAL, trial=1, now=True)])
    play.when("signal", 1, SIGKILL, then=[Ended(1, -SIGKILL)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["CANCELED", "COMPLETED"]
    assert [reason for _, reason in play.runs] == [None, None]
    assert play.all("preempt") == [(1, "the trial is canceled")]


@pytest.mark.usefixtures("soon")
def test_experiment_can_be_renamed_while_it_is_driven(store: Store) -> None:
    play, names = Play(store, SINGLE), list[str]()
    play.at_polls(
        [play.command(DESCRIBE_COMMAND, name="other")],
        [lambda: names.append(play.row.name), *trains(1)],
    )
    assert play.driver.run() is ExperimentState.COMPLETED
    assert names == ["other"]


def test_where_a_trial_can_go_on_nowhere_the_others_save(store: Store) -> None:
    play = Play(store, slots=2)
    play.when("start", 2, then=[says(1, 1, Finished(Outcome.BLOCKED, "no data")), Ended(1, 1)])
    play.when("preempt", 2, "no data", then=saves(2))
    assert play.driver.run() is ExperimentState.ERROR
    assert play.trials == ["PAUSED", "PAUSED"]
    assert play.runs == [("blocked", "no data"), ("preempted", None)]


def test_closed_trial_whose_run_ends_blocked_is_complete(play: Play) -> None:
    play.when("start", 1, then=[completed(1)])
    play.when(
        "reply", 1, 1, "", then=[says(1, 2, Finished(Outcome.BLOCKED, "no room")), Ended(1, 1)]
    )
    assert play.driver.run() is ExperimentState.ERROR
    assert play.trials == ["COMPLETED", "PAUSED"]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("target_states", "becomes"),
    [
        (["pause"], "PAUSED"),
        (["cancel"], "CANCELED"),
        (["kill"], "CANCELED"),
        (["pause", "cancel"], "CANCELED"),
        (["cancel", "pause"], "CANCELED"),
        (["cancel", "Ctrl-C"], "CANCELED"),
        (["cancel", "Ctrl-C twice"], "CANCELED"),
        (["pause", "Ctrl-C twice"], "PAUSED"),
        (["pause", "kill"], "CANCELED"),
        (["blocked", "pause"], "ERROR"),
        (["blocked", "cancel"], "ERROR"),
        (["blocked", "Ctrl-C twice"], "ERROR"),
        (["blocked", "kill"], "CANCELED"),
        (["pause", "blocked"], "ERROR"),
        (["cancel", "blocked"], "ERROR"),
    ],
)
def test_final_state_follows_from_several_commands(
    store: Store, target_states: list[str], becomes: str
) -> None:
    """A run that is blocked counts as one of them."""
    play = Play(store, RANDOM | {"max_trials": 3}, slots=3)
    done: dict[str, list[Reaction]] = {
        "blocked": [says(1, 1, Finished(Outcome.BLOCKED, "no data")), Ended(1, 1)],
        "Ctrl-C": [play.driver.pause],
        "Ctrl-C twice": [play.driver.kill],
    }
    acts = [done.get(target_state, [play.command(target_state)]) for target_state in target_states]
    ends = [Ended(run, 0) for run in (1, 2) if run == 2 or "blocked" not in target_states]
    play.at_polls(*acts, [*ends, *saves(3)])
    assert play.driver.run() == becomes
    assert play.row.state == becomes
    assert play.trials == [*["CANCELED" if becomes == "CANCELED" else "PAUSED"] * 3]
    hard = {"kill", "Ctrl-C twice"} & {*target_states}
    assert len(play.all("signal")) == (len(ends) + 1 if hard else 0)
    assert {run for run, _ in play.all("preempt")} >= (
        {2, 3} if target_states != ["kill"] else {*()}
    )


# Now and then


class Clock:
    """A clock that is set by hand, and may go on a little whenever it is looked at."""

    def __init__(self) -> None:
        self.now = self.step = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        now = self.now
        self.looks += 1
        self.now += self.step
        return now

    time = staticmethod(time.time)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_driver, "time", clock)
    return clock


def looks(play: Play, clock: Clock, times: list[float]) -> list[tuple[int, float]]:
    """Have the driver look at the clock at these times, a message apart.

    The first of them takes it long.

    Return, for each, how often it has looked around by then, and what progress it shows, in words.
    """
    seen: list[tuple[int, float]] = []

    def ask(number: int) -> None:
        play.when("reply", 1, 2 * number + 2, "", then=[lambda: answered(number)])
        play.engine.on_event(says(1, 2 * number + 1, Progressed((number + 1) / 128)))
        play.engine.on_event(says(1, 2 * number + 2, AskBest()))

    def answered(number: int) -> None:
        if number:
            seen.append((len(play.all("want")) - before, play.row.progress * 128))
        if number < len(times):
            clock.now = times[number]
            ask(number + 1)
        else:
            for event in trains(1, first=2 * number + 3):
                play.engine.on_event(event)
        clock.step = clock.step if number == 0 else 0.0

    before = 1  # as it begins
    play.when("start", 1, then=[lambda: ask(0)])
    assert play.driver.run() is ExperimentState.COMPLETED
    return seen


def test_driver_polls_and_shows_progress_at_intervals(store: Store, clock: Clock) -> None:
    times = [0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 0.875, 1.0, 1.25]
    seen = looks(Play(store, SINGLE), clock, times)
    assert [polls for polls, _ in seen] == [1, 1, 2, 2, 3, 4, 4, 5, 6]
    assert [words for _, words in seen] == [1, 1, 1, 1, 1, 1, 1, 8, 8]


def test_a_driver_that_hears_nothing_sleeps(store: Store, clock: Clock) -> None:
    play, looks = Play(store, SINGLE), list[int]()

    def speak() -> None:
        looks.append(clock.looks)
        for event in trains(1):
            play.engine.on_event(event)

    play.when("start", 1, then=[threading.Timer(0.3, speak).start])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert looks[0] < 20


@pytest.mark.parametrize(
    ("times", "shown"), [([0.0, 6.6875], [1, 1]), ([0.0, 6.5, 6.75], [1, 1, 3])]
)
def test_slow_progress_is_shown_less_often(
    store: Store, clock: Clock, times: list[float], shown: list[int]
) -> None:
    """It took an eighth of a second, half a second after the driver began."""
    clock.step = 0.125
    assert [words for _, words in looks(Play(store, SINGLE), clock, times)] == shown

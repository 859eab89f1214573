"""What a driver does in which order: it hears, commits, and then acts; and what it leaves, however it comes to its end."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

import pytest

from det_core import EngineRecord, Outcome, Plugins, hookimpl, protocol
from det_core.agent import RunSpec
from det_core.config import parse, to_json
from det_core.environ import WorkerEnv
from det_core.manifest import Manifest
from det_core.process import note_process
from det_core.protocol import (
    AskBest,
    Checkpointed,
    Completed,
    Deleted,
    Finished,
    Progressed,
    Reported,
    Said,
    Spooled,
    Validated,
    encode_note,
)
from det_driver.driver import Driver, DriverSettings, _driver
from det_driver.driver._lifecycle import DESCRIBE, GIVE_UP
from det_driver.driver._search import SearchStarted, TrialExited, decode_event
from det_driver.engines import Ended, Engine, Joined, Lost, Site, Spoke
from det_driver.store import ExperimentState, Store, boot_id

RANDOM = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": 10, "max_concurrent_trials": 0}
HALVING = {"name": "async_halving", "metric": "loss", "num_rungs": 2, "max_trials": 2, "max_length": 40, "divisor": 4}
SINGLE = {"name": "single", "metric": "loss", "max_length": 10}
FEW_KEPT = {"type": "shared_fs", "save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
CLOSED, PAUSE = "the searcher closed the trial", "the experiment is paused"

Told = tuple[Any, ...]
Reaction = Any  # what is heard then, or something to be called


class Stage(Engine):
    """Runs without processes: what is heard of them when the engine is told something is a test's to say."""

    def __init__(self, hears: Any) -> None:
        super().__init__(hears)
        self.said: list[Told] = []
        self.reactions: dict[Told, list[Reaction]] = {}
        self.found: tuple[RunSpec, ...] = ()
        self.specs: list[RunSpec] = []
        self.frames: list[list[Told]] = []
        self.together = self.frame

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Note what is said inside as said together."""
        before = len(self.said)
        yield
        self.frames.append(self.said[before:])

    def tell(self, *told: Any) -> None:
        self.said.append(told)
        for reaction in self.reactions.pop(told, ()):
            reaction() if callable(reaction) else self.hears(reaction)

    def open(self, site: Site) -> tuple[RunSpec, ...]:
        self.tell("open", site.name)
        return self.found

    def want(self, runs: int, slots: int) -> None:
        self.tell("want", runs, slots)

    def start(self, spec: RunSpec) -> None:
        self.specs.append(spec)
        self.tell("start", spec.run_id)

    def signal(self, run: int, number: Signals) -> None:
        self.tell("signal", run, number)

    def preempt(self, run: int, reason: str) -> None:
        self.tell("preempt", run, reason)

    def answer(self, run: int, link: int, answer: protocol.Answer) -> None:
        self.tell("answer", run, answer.number, answer.error)

    def taken(self, run: int, link: int, number: int) -> None:
        self.tell("taken", run, number)

    def settled(self, run: int) -> None:
        self.tell("settled", run)

    def let_go(self) -> None:
        self.tell("let go")

    def close(self) -> None:
        self.tell("close")


class Observer:
    """Notes what it is told of an experiment."""

    def __init__(self) -> None:
        self.told: list[Told] = []

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

    def __init__(self, store: Store, searcher: dict[str, Any] = RANDOM, slots: int = 1, **settings: Any) -> None:
        space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
        settings = {"max_restarts": 0, **settings}
        config = parse({"entrypoint": "m:T", "hyperparameters": space, "searcher": searcher, **settings}).config
        metric = {"metric": "loss", "smaller_is_better": True}
        self.store, self.slots = store, slots
        self.id = store.experiments.create(name="x", config=to_json(config), engine="stage", **metric).id
        store.code_dir(self.id).mkdir()
        self.again()

    def again(self) -> None:
        """Let there be another driver."""
        self.observer, plugins = Observer(), Plugins.installed()
        plugins.register(self.observer, "looks")
        plugins.register(self, "stage")
        self.driver = Driver(DriverSettings(home=self.store.home, slots=self.slots, engine="stage"), self.id, plugins)
        assert isinstance(self.driver.engine, Stage)
        self.engine = self.driver.engine

    @hookimpl
    def det_engines(self) -> Iterator[EngineRecord]:
        yield EngineRecord(name="stage", load=lambda: Stage)

    def when(self, *told: Any, then: list[Reaction]) -> None:
        """Let these be heard, or called, as the engine is told this for the first time from now on."""
        self.engine.reactions[told] = then

    def killed_at(self, *told: Any) -> None:
        """Drive, in a process of its own, until the engine is told this; then the driver is killed."""
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
        """React so to each of the driver's next looks around; it has started all trials, and says so then."""
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
        found = sorted((run for trial in trials for run in self.store.runs.list(trial.id)), key=lambda run: run.id)
        return [(run.outcome, run.reason) for run in found]

    @property
    def checkpoints(self) -> dict[str, str]:
        return {row.uuid: str(row.state) for row in self.store.checkpoints.list(experiment_id=self.id)}

    @property
    def expected(self) -> list[str]:
        return [path.name for path in (self.store.home / "garbage").glob("*")]

    def all(self, kind: str) -> list[Told]:
        """What the engine was told of this kind, in order."""
        return [told[1:] for told in self.engine.said if told[0] == kind]


def says(run: int, number: int, word: protocol.Word) -> Spoke:
    return Spoke(run, 0, run, Said(number, word))


def completed(run: int, loss: float = 1.0, number: int = 1) -> Spoke:
    return says(run, number, Completed(10, {"loss": loss}, 10))


def trains(run: int, loss: float = 1.0, first: int = 1) -> list[Reaction]:
    """What is heard of a run that goes well, from this word on."""
    return [completed(run, loss, first), says(run, first + 1, Finished(Outcome.COMPLETED)), Ended(run, 0)]


def saves(run: int, number: int = 1) -> list[Reaction]:
    return [says(run, number, Finished(Outcome.PREEMPTED)), Ended(run, 0)]


def checkpoint(play: Play, uuid: str, batches: int = 5) -> Manifest:
    """The files of a checkpoint of the first trial."""
    (play.store.home / "checkpoints" / uuid).mkdir(parents=True)
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


# From the first trial to the end


def test_a_search_is_driven_to_its_end_and_nothing_is_left_to_do(play: Play) -> None:
    before, driven = time.time(), []
    play.when("start", 1, then=[lambda: driven.append(play.row), *trains(1)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    (row,) = driven
    assert (row.state, row.pid, row.boot, row.det) == ("ACTIVE", os.getpid(), boot_id(), version("det-driver"))
    assert (row.started >= before, row.ended, row.reason) == (True, None, None)
    over = play.row
    assert (over.state, over.pid, over.boot, over.progress, over.reason) == ("COMPLETED", None, None, 1.0, None)
    assert before <= over.started <= over.ended <= time.time()
    assert play.trials == ["COMPLETED", "COMPLETED"]
    assert play.runs == [("completed", None)] * 2
    runs = [("run", number, number, "completed", "completed") for number in (1, 2)]
    assert play.observer.told == [("started",), *runs, ("finished", "COMPLETED")]
    assert play.engine.said[1:] == [
        ("want", 1, 1),  # before it is known for which trial
        ("start", 1),
        ("want", 1, 1),
        *(("answer", 1, 1, ""), ("answer", 1, 2, ""), ("settled", 1)),
        ("start", 2),
        *(("answer", 2, 1, ""), ("answer", 2, 2, ""), ("settled", 2)),
        ("close",),
    ]
    assert play.store.snapshots.read(play.id)
    assert play.store.slots.holders() == {}
    with play.store.lock(play.id):
        pass


def test_what_words_and_ends_in_a_row_say_is_committed_at_once_and_then_answered(play: Play) -> None:
    seen = []
    play.when("start", 1, then=trains(1))
    play.when("answer", 1, 1, "", then=[lambda: seen.append((play.trials, play.runs))])
    play.when("start", 2, then=trains(2))
    play.driver.run()
    assert seen == [(["COMPLETED", "QUEUED"], [("completed", None)])]
    assert [("answer", 1, 1, ""), ("answer", 1, 2, ""), ("settled", 1)] in play.engine.frames, (
        "to each agent in one frame"
    )


def test_what_a_word_closes_is_ended_with_it(store: Store) -> None:
    play, seen = Play(store, HALVING), list[Any]()
    play.when("start", 1, then=trains(1, 2.0))
    play.when("start", 2, then=[completed(2, 1.0)])
    play.when("answer", 2, 1, "", then=[lambda: seen.append(play.trials), *saves(2, 2)])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert seen == [["COMPLETED", "RUNNING"]]
    assert play.trials == ["COMPLETED", "COMPLETED"]


def test_a_trial_that_its_searcher_closes_is_asked_to_end_unless_it_has_been(store: Store) -> None:
    play = Play(store, entrypoint="python3 train.py")
    play.when("start", 1, then=[completed(1)])
    play.when("preempt", 1, CLOSED, then=saves(1, 2))
    play.when("start", 2, then=[play.driver.pause])
    play.when("preempt", 2, PAUSE, then=[completed(2)])
    play.when("answer", 2, 1, "", then=saves(2, 2))
    assert play.driver.run() is ExperimentState.PAUSED
    assert play.all("preempt") == [(1, CLOSED), (2, PAUSE)]
    assert play.trials == ["COMPLETED", "COMPLETED"]
    events = [decode_event(event.data) for event in play.store.journal.read(play.id)]
    assert [event.trial for event in events if isinstance(event, TrialExited)] == [0, 1]


def test_a_trial_class_that_an_answer_told_to_stop_is_not_asked_to_as_well(play: Play) -> None:
    play.when("start", 1, then=trains(1))
    play.when("start", 2, then=[completed(2)])
    play.when("answer", 2, 1, "", then=[*saves(2, 2)])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.all("preempt") == []


def test_a_trial_class_that_was_told_to_stop_is_asked_to_save_by_a_pause(store: Store) -> None:
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


def test_of_a_run_that_has_ended_or_was_never_there_nothing_is_taken_and_its_end_is_settled(play: Play) -> None:
    late = [says(1, 3, Reported("training", 9, {})), Ended(1, 0)]
    play.when("start", 1, then=[says(7, 1, Reported("training", 1, {})), Ended(7, 0), *trains(1), *late])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert [report.group for report in play.store.metrics.read(trial_id=1)] == ["validation"]
    assert sorted(play.all("settled")) == [(1,), (1,), (2,), (7,)]


def test_a_trial_whose_run_failed_is_started_again(store: Store) -> None:
    play = Play(store, SINGLE, max_restarts=1)
    play.when("start", 1, then=[Ended(1, 3)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.runs == [("the process exited with status 3", "the process exited with status 3"), ("completed", None)]


def test_a_search_whose_trials_failed_says_why(play: Play) -> None:
    play.when("start", 1, then=[says(1, 1, Finished(Outcome.ERROR, "no such file")), Ended(1, 1)])
    play.when("start", 2, then=[Ended(2, -11)])
    assert play.driver.run() is ExperimentState.ERROR
    assert play.runs[0] == ("error", "no such file")
    assert (play.row.state, play.row.reason) == ("ERROR", play.driver.failures.reason)
    assert play.driver.failures.reason.startswith("trial 1: no such file; trial 2: the process was killed by SIGSEGV")
    assert play.observer.told[-1] == ("finished", "ERROR")


# Machines


def test_a_machine_that_joins_has_what_nobody_drives_ended(play: Play) -> None:
    play.when("start", 1, then=[Joined("", (1, 7)), *trains(1)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.all("signal") == [(7, SIGKILL)]


def test_a_trial_whose_machine_is_lost_goes_on_elsewhere(store: Store) -> None:
    play = Play(store, SINGLE)
    play.when("start", 1, then=[Lost("")])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.runs == [("preempted", None), ("completed", None)]


# Checkpoints


def test_checkpoints_that_are_not_kept_are_deleted_when_the_search_is_through(store: Store) -> None:
    play = Play(store, checkpoint_storage=FEW_KEPT | {"host_path": str(store.home / "checkpoints")})
    play.when("start", 1, then=[says(1, 1, Checkpointed(checkpoint(play, "a"), "{}")), play.driver.pause])
    play.when("preempt", 1, PAUSE, then=saves(1, 2))
    play.driver.run()
    assert (play.checkpoints, play.expected) == ({"a": "COMPLETED"}, [])  # a paused one may need any of them
    play.again()
    play.when("start", 2, then=trains(2))
    play.when("start", 3, then=trains(3))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert (play.checkpoints, play.expected) == ({"a": "DELETED"}, [])


def test_what_cannot_be_deleted_now_is_known_to_the_next_driver_of_any_experiment(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    play = Play(store, checkpoint_storage=FEW_KEPT | {"host_path": str(store.home / "checkpoints")})
    named = Manifest(uuid="..", framework="fake", batches=5, trial_id=1)  # no storage takes that name
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


def test_a_killed_runs_last_checkpoint_is_taken_up_before_its_trial_goes_on(store: Store) -> None:
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
    play.when("answer", 1, 1, "", then=[lambda: seen.append(play.runs)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert seen == [[(None, None)]]


# What is wrong


def test_a_word_that_cannot_be_taken_is_its_runs_mistake_and_nobody_elses(play: Play) -> None:
    mistaken = "what it said could not be taken"
    play.when("start", 1, then=[says(1, 1, Reported("training", 2**63, {}))])
    play.when("preempt", 1, mistaken, then=[Ended(1, 0)])
    play.when("start", 2, then=[says(2, 1, Deleted("nothing of the kind")), *trains(2, first=2)])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["ERROR", "COMPLETED"]
    (outcome, reason), _ = play.runs
    assert (outcome, play.driver.failures.mistake) == ("mistake", True)
    assert reason is not None
    assert reason.startswith("its word 'Reported' could not be taken: ")
    assert play.all("taken") == [(1, 1)]
    assert play.all("preempt") == [(1, mistaken)]
    assert "nothing of the kind" in play.all("answer")[0][2]


def test_a_run_that_has_ended_since_its_word_could_not_be_taken_is_not_asked_to(play: Play) -> None:
    play.when("start", 1, then=[says(1, 1, Reported("training", 2**63, {})), Ended(1, 1)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.all("preempt") == []
    assert play.trials == ["ERROR", "COMPLETED"]


def fill(play: Play) -> None:
    """Let the experiment's database grow no more, as on a full disk: SQLite takes this for as many pages as there are."""
    play.driver._store._databases.held()._connection.execute("PRAGMA max_page_count = 1")


def test_a_full_disk_pauses_an_experiment_and_its_runs_save_by_themselves(play: Play) -> None:
    large = Validated(3, {"loss": 1.0, "note": "x" * 10**6}, None)
    play.when("start", 1, then=[lambda: fill(play), says(1, 1, large), Ended(1, 0)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert play.driver.failures.resumable
    (why,) = play.driver.failures.messages
    assert "full" in why
    assert (play.row.state, play.row.reason, play.row.pid) == ("PAUSED", why, None)
    assert play.engine.said[-2:] == [("let go",), ("close",)]  # and no run is left to be killed
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
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'journal')"
        " WHERE name = 'trials_by_metric'"
    )
    connection.execute(f"PRAGMA schema_version = {version + 1}")


def test_a_store_that_is_damaged_is_not_the_mistake_of_the_run_whose_word_finds_it(play: Play) -> None:
    """And that is what is said, not what follows from it."""
    play.when("start", 1, then=[lambda: damage(play), says(1, 1, AskBest()), says(1, 2, AskBest())])
    for told in (("answer", 1, 1, ""), ("let go",)):
        play.when(*told, then=[Ended(1, 0)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert (play.driver.failures.mistake, play.all("answer")) == (False, [])
    assert "experiment.db is damaged (" in play.row.reason


def out_of_disk() -> None:
    raise OSError(errno.ENOSPC, "the disk says no")


def test_a_disk_that_is_full_from_the_start_pauses_an_experiment(play: Play) -> None:
    play.when("want", 1, 1, then=[out_of_disk])
    assert play.driver.run() is ExperimentState.PAUSED
    why = "no agent can be started: the disk says no"
    assert (play.driver.failures.resumable, play.driver.failures.messages) == (True, [why])
    assert (play.row.state, play.row.reason) == ("PAUSED", why)
    assert play.engine.said[-1] == ("close",)


def test_an_error_that_nobody_foresaw_is_the_experiments_and_its_runs_save(play: Play) -> None:
    play.when("start", 1, then=[says(1, 1, Validated(3, {"loss": 1.0}, None)), Ended(1, -SIGKILL)])
    play.when("answer", 1, 1, "", then=[lambda: 1 // 0])
    with pytest.raises(ZeroDivisionError):
        play.driver.run()
    assert (play.row.state, play.row.pid) == ("ERROR", None)
    assert play.row.reason.startswith("ZeroDivisionError: ")
    assert play.engine.said[-2:] == [("let go",), ("close",)]
    assert play.trials == ["PAUSED", "PAUSED"]
    play.again()
    play.when("start", 2, then=trains(2))
    play.when("start", 3, then=trains(3))
    assert play.driver.run() is ExperimentState.COMPLETED


# The next driver


def test_the_next_driver_goes_on_where_one_ended(play: Play) -> None:
    driven = list[Any]()
    play.when("start", 1, then=[says(1, 1, Finished(Outcome.BLOCKED, "no data")), Ended(1, 1)])
    assert play.driver.run() is ExperimentState.ERROR
    before = play.row
    assert (before.reason, play.driver.failures.resumable) == ("trial 1: no data", True)
    assert (play.trials, play.expected) == (["PAUSED", "PAUSED"], [])  # it may need any of its checkpoints
    play.again()
    play.when("start", 2, then=[lambda: driven.append((play.row, play.trials)), *trains(2)])
    play.when("start", 3, then=trains(3))
    assert play.driver.run() is ExperimentState.COMPLETED
    ((row, trials),) = driven
    assert (row.started, row.ended, row.reason, row.state) == (before.started, None, None, "ACTIVE")
    assert trials == ["RUNNING", "QUEUED"]
    events = [decode_event(event.data) for event in play.store.journal.read(play.id)]
    assert sum(isinstance(event, SearchStarted) for event in events) == 1


def test_a_run_that_outlived_its_driver_goes_on_with_the_next_one(play: Play) -> None:
    play.killed_at("start", 1)
    place = {"code_dir": play.store.code_dir(play.id), "log_dir": play.store.runs.list(1)[0].log_dir}
    leased = {"slots": (0,), "devices": ("cpu:0",)}
    play.engine.found = (RunSpec(run_id=1, entrypoint="m:T", trial_class=True, variables={}, **place, **leased),)
    for event in trains(1):
        play.engine.hears(event)
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.runs == [("completed", None)] * 2
    assert play.trials == ["COMPLETED", "COMPLETED"]


def test_what_a_killed_driver_left_is_taken_up(play: Play) -> None:
    """A checkpoint that was saved without a driver, and a trial that its searcher had closed."""
    play.when("start", 1, then=[completed(1)])
    play.killed_at("answer", 1, 1, "")
    play.leave(1, "a", 10)
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["COMPLETED", "COMPLETED"]
    assert play.runs == [("lost", None), ("completed", None)]
    assert play.checkpoints == {"a": "COMPLETED"}


def test_an_experiment_of_which_nothing_is_left_to_train_ends_with_its_next_driver(store: Store) -> None:
    play = Play(store, SINGLE)
    play.when("start", 1, then=[completed(1)])
    play.killed_at("answer", 1, 1, "")
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["COMPLETED"]


@pytest.mark.parametrize("words", [1, 2])
def test_a_process_that_a_killed_driver_left_may_save_unless_its_pause_is_asked_for_twice(
    play: Play, tmp_path: Path, words: int
) -> None:
    play.killed_at("start", 1)
    (run,) = play.store.runs.list(1)
    run.log_dir.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(["sh", "-c", f"sleep 0.5; touch {tmp_path}/saved"], start_new_session=True) as left:
        note_process(run.log_dir, left.pid)
        for _ in range(words):
            play.driver.pause()
        play.when("start", 2, then=[])
        play.when("preempt", 2, PAUSE, then=saves(2))
        assert play.driver.run() is ExperimentState.PAUSED
    assert (tmp_path / "saved").exists() == (words == 1)
    assert play.runs == [("lost", None), ("preempted", None)]


def test_what_was_asked_of_an_earlier_driver_is_no_longer_meant(play: Play) -> None:
    play.command("cancel")()
    play.when("start", 1, then=trains(1))
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert not play.store.commands.names(play.id)


# What people want


def test_a_pause_lets_runs_save_and_the_others_rest(play: Play) -> None:
    play.when("start", 1, then=[play.driver.pause])
    play.when("preempt", 1, PAUSE, then=saves(1))
    assert play.driver.run() is ExperimentState.PAUSED
    assert (play.row.state, play.row.pid, play.row.reason) == ("PAUSED", None, None)
    assert (play.trials, play.runs) == (["PAUSED", "PAUSED"], [("preempted", None)])
    assert play.observer.told[-1] == ("finished", "PAUSED")


def test_what_is_killed_is_resumable_and_its_runs_have_not_failed(play: Play) -> None:
    play.when("start", 1, then=[play.driver.kill])
    play.when("signal", 1, SIGKILL, then=[Ended(1, -SIGKILL)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert [reason for _, reason in play.runs] == [None]
    assert (play.trials, play.all("preempt")) == (["PAUSED", "PAUSED"], [])


def test_a_run_that_fails_as_it_is_asked_to_save_has_failed(play: Play) -> None:
    play.when("start", 1, then=[play.driver.pause])
    play.when("preempt", 1, PAUSE, then=[says(1, 1, Finished(Outcome.ERROR, "no room")), Ended(1, 1)])
    assert play.driver.run() is ExperimentState.PAUSED
    assert play.runs == [("error", "no room")]


@pytest.mark.usefixtures("soon")
def test_a_run_that_does_not_end_when_its_trial_is_closed_is_killed_and_has_not_failed(store: Store) -> None:
    play = Play(store, preemption_timeout=0)
    play.when("start", 1, then=[completed(1)])
    play.when("signal", 1, SIGKILL, then=[Ended(1, -SIGKILL)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert [reason for _, reason in play.runs] == [None, None]
    assert play.trials == ["COMPLETED", "COMPLETED"]


@pytest.mark.usefixtures("soon")
def test_a_trial_is_given_up_and_its_search_goes_on(play: Play) -> None:
    play.when("start", 1, then=[play.command(GIVE_UP, trial=1, now=True)])
    play.when("signal", 1, SIGKILL, then=[Ended(1, -SIGKILL)])
    play.when("start", 2, then=trains(2))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert play.trials == ["CANCELED", "COMPLETED"]
    assert [reason for _, reason in play.runs] == [None, None]
    assert play.all("preempt") == [(1, "the trial is canceled")]


@pytest.mark.usefixtures("soon")
def test_an_experiment_is_called_something_else_while_it_is_driven(store: Store) -> None:
    play, names = Play(store, SINGLE), list[str]()
    play.at_polls([play.command(DESCRIBE, name="other")], [lambda: names.append(play.row.name), *trains(1)])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert names == ["other"]


def test_where_a_trial_can_go_on_nowhere_the_others_save(store: Store) -> None:
    play = Play(store, slots=2)
    play.when("start", 2, then=[says(1, 1, Finished(Outcome.BLOCKED, "no data")), Ended(1, 1)])
    play.when("preempt", 2, "no data", then=saves(2))
    assert play.driver.run() is ExperimentState.ERROR
    assert play.trials == ["PAUSED", "PAUSED"]
    assert play.runs == [("blocked", "no data"), ("preempted", None)]


def test_a_closed_trial_whose_run_is_blocked_at_its_end_is_complete(play: Play) -> None:
    play.when("start", 1, then=[completed(1)])
    play.when("answer", 1, 1, "", then=[says(1, 2, Finished(Outcome.BLOCKED, "no room")), Ended(1, 1)])
    assert play.driver.run() is ExperimentState.ERROR
    assert play.trials == ["COMPLETED", "PAUSED"]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("wishes", "becomes"),
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
def test_what_an_experiment_becomes_of_which_several_things_are_wanted(
    store: Store, wishes: list[str], becomes: str
) -> None:
    play = Play(store, RANDOM | {"max_trials": 3}, slots=3)
    done: dict[str, list[Reaction]] = {
        "blocked": [says(1, 1, Finished(Outcome.BLOCKED, "no data")), Ended(1, 1)],
        "Ctrl-C": [play.driver.pause],
        "Ctrl-C twice": [play.driver.kill],
    }
    acts = [done.get(wish, [play.command(wish)]) for wish in wishes]
    ends = [Ended(run, 0) for run in (1, 2) if run == 2 or "blocked" not in wishes]
    play.at_polls(*acts, [*ends, *saves(3)])
    assert play.driver.run() == becomes
    assert play.row.state == becomes
    assert play.trials == [*["CANCELED" if becomes == "CANCELED" else "PAUSED"] * 3]
    hard = {"kill", "Ctrl-C twice"} & {*wishes}
    assert len(play.all("signal")) == (len(ends) + 1 if hard else 0)
    assert {run for run, _ in play.all("preempt")} >= ({2, 3} if wishes != ["kill"] else {*()})


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
    """Have the driver look at the clock at these times, a word apart, of which the first one's takes it long.

    Return, for each, how often it has looked around by then, and what progress it shows, in words.
    """
    seen: list[tuple[int, float]] = []

    def ask(number: int) -> None:
        play.when("answer", 1, 2 * number + 2, "", then=[lambda: answered(number)])
        play.engine.hears(says(1, 2 * number + 1, Progressed((number + 1) / 128)))
        play.engine.hears(says(1, 2 * number + 2, AskBest()))

    def answered(number: int) -> None:
        if number:
            seen.append((len(play.all("want")) - before, play.row.progress * 128))
        if number < len(times):
            clock.now = times[number]
            ask(number + 1)
        else:
            for event in trains(1, first=2 * number + 3):
                play.engine.hears(event)
        clock.step = clock.step if number == 0 else 0.0

    before = 1  # as it begins
    play.when("start", 1, then=[lambda: ask(0)])
    assert play.driver.run() is ExperimentState.COMPLETED
    return seen


def test_a_driver_looks_around_and_shows_its_progress_now_and_then(store: Store, clock: Clock) -> None:
    times = [0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 0.875, 1.0, 1.25]
    seen = looks(Play(store, SINGLE), clock, times)
    assert [polls for polls, _ in seen] == [1, 1, 2, 2, 3, 4, 4, 5, 6]
    assert [words for _, words in seen] == [1, 1, 1, 1, 1, 1, 1, 8, 8]


def test_a_driver_that_hears_nothing_sleeps(store: Store, clock: Clock) -> None:
    play, looks = Play(store, SINGLE), list[int]()

    def speak() -> None:
        looks.append(clock.looks)
        for event in trains(1):
            play.engine.hears(event)

    play.when("start", 1, then=[threading.Timer(0.3, speak).start])
    assert play.driver.run() is ExperimentState.COMPLETED
    assert looks[0] < 20


@pytest.mark.parametrize(("times", "shown"), [([0.0, 6.6875], [1, 1]), ([0.0, 6.5, 6.75], [1, 1, 3])])
def test_progress_that_takes_long_to_find_out_is_shown_more_rarely(
    store: Store, clock: Clock, times: list[float], shown: list[int]
) -> None:
    """It took an eighth of a second, half a second after the driver began."""
    clock.step = 0.125
    assert [words for _, words in looks(Play(store, SINGLE), clock, times)] == shown

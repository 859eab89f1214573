"""What a driver makes of a worker's word.

It is taken once, committed, and then answered, as often as it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_transactions import run, state_of

from det_core import Outcome, Plugins, hookimpl
from det_core.checkpoint.manifest import Manifest
from det_core.errors import DetError
from det_core.train.host import Target
from det_driver.driver._alerts import ExperimentAlerts
from det_driver.driver._connections import handle_message, report_failed_message
from det_driver.driver._state import State
from det_driver.engines import Engine, RunSpec, WorkerMessage
from det_driver.store import Store
from det_node import protocol

MANIFEST = Manifest(uuid="u", framework="fake", batches=5)


class Ear(Engine):
    """What the workers of a run would hear."""

    def __init__(self) -> None:
        super().__init__(lambda event: None)
        self.answers: list[tuple[int, int, protocol.Reply]] = []
        self.confirmed: list[tuple[int, int, int]] = []

    def start(self, spec: RunSpec) -> None:
        raise NotImplementedError

    def signal(self, run: int, number: Any) -> None:
        raise NotImplementedError

    def reply(self, run: int, link: int, reply: protocol.Reply) -> None:
        self.answers.append((run, link, reply))

    def acknowledge(self, run: int, link: int, number: int) -> None:
        self.confirmed.append((run, link, number))


class Observer:
    def __init__(self) -> None:
        self.saved: list[tuple[str, str]] = []

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        self.saved.append((trial.latest_checkpoint, checkpoint.uuid))


class Line:
    """The messages of one run, numbered in order unless a test says otherwise."""

    def __init__(self, store: Store) -> None:
        self.observer, plugins = Observer(), Plugins.installed()
        plugins.register(self.observer, "looks")
        self.store, self.state, self.engine = store, state_of(store, plugins=plugins), Ear()
        self.alerts = ExperimentAlerts(store, self.state.id)
        self.live = run(self.state)
        self.active = self.live.active

    def says(
        self, word: protocol.Message, number: int, link: int = 1, rank: int = 0
    ) -> protocol.Reply | None:
        """Say a word, and return the answer, if any."""
        before = len(self.engine.answers)
        event = WorkerMessage(self.active.run.id, rank, link, protocol.Envelope(number, word))
        handle_message(self.state, self.engine, self.alerts, self.live, self.active, event)
        answers = self.engine.answers[before:]
        assert [(run, to, answer.number) for run, to, answer in answers] == [
            (self.active.run.id, link, number)
        ] * len(answers)
        return answers[0][2] if answers else None

    @property
    def reports(self) -> list[tuple[str, int, dict[str, Any]]]:
        return [
            (m.group, m.batches, m.values) for m in self.store.metrics.read(trial_id=self.live.id)
        ]


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with Store(tmp_path) as store:
        yield Line(store)


def events(line: Line) -> int:
    return len([*line.store.journal.read(line.state.id)])


def test_repeated_validation_is_recorded_once_and_gets_its_reply(line: Line) -> None:
    word = protocol.Validated(5, {"loss": 1.0}, None)
    best = Target(n=10, unit="batches", best=True)
    answer, before = line.says(word, 1), events(line)
    assert answer == protocol.Reply(number=1, target=best)
    assert line.says(word, 1) == answer
    assert (events(line), line.reports) == (before, [("validation", 5, {"loss": 1.0})])
    assert line.says(protocol.Validated(6, {"loss": 2.0}, None), 2).target.best is False
    assert events(line) == before + 1


def test_each_connection_has_its_own_sequence_numbers(line: Line) -> None:
    """The store keeps the newest number of each connection."""
    line.says(protocol.Reported("training", 1, {"loss": 1.0}), 1)
    line.says(protocol.Reported("training", 2, {"loss": 1.0}), 1, link=2)
    line.says(protocol.Reported("training", 3, {"loss": 1.0}), 2)
    assert [batches for _, batches, _ in line.reports] == [1, 2, 3]
    assert line.active.acked == line.store.runs.read_acked(line.active.run.id) == {1: 2, 2: 1}


def test_what_is_only_told_has_no_answer_and_is_done(line: Line) -> None:
    for number, word in enumerate(
        [
            protocol.Reported("mine", 3, {"x": 1}),
            protocol.Progressed(0.25),
            protocol.BackendChosen("b"),
            protocol.Origin({"git": "abc"}),
            protocol.Status("busy"),
        ]
    ):
        assert line.says(word, number + 1) is None
    assert not line.active.replied
    assert line.reports == [("mine", 3, {"x": 1})]
    assert line.live.progress == line.state.row(line.live).progress == 0.25
    run = line.store.runs.get(line.active.run.id)
    assert run.backend == "b"
    assert line.store.runs.origins(line.state.id) == {run.origin: {"git": "abc"}}


def test_a_report_may_say_how_much_is_done(line: Line) -> None:
    assert line.says(protocol.Reported("training", 3, {"x": 1}, 0.5), 1) is None
    assert line.live.progress == line.state.row(line.live).progress == 0.5
    line.says(protocol.Reported("training", 4, {"x": 1}), 2)
    assert line.state.row(line.live).progress == 0.5
    assert line.reports == [("training", 3, {"x": 1}), ("training", 4, {"x": 1})]


def test_a_report_of_a_script_counts_as_progress(line: Line) -> None:
    until = line.live.plan.until
    line.says(protocol.Reported("training", until // 2, {"x": 1}), 1)
    assert line.live.progress == line.state.row(line.live).progress == (until // 2) / until
    line.says(protocol.Reported("mine", until, {"x": 1}), 2)
    assert line.live.progress == (until // 2) / until
    line.says(protocol.Reported("training", 2 * until, {"x": 1}), 3)
    assert line.live.progress == 1.0


def test_progress_does_not_go_back_when_another_driver_goes_on(line: Line) -> None:
    """A run repeats what no checkpoint holds. A longer training has done less of its length."""
    half = line.live.plan.until // 2
    line.says(protocol.Reported("training", half, {"x": 1}, 0.5), 1)
    for at, fraction, shown in ((1, 0.1, 0.5), (half + 1, 0.6, 0.6)):
        line.state = State(line.store, line.state.id, Plugins.installed())
        line.live = next(t for t in line.state.trials.values() if t.id == line.live.id)
        line.says(protocol.Reported("training", at, {"x": 1}, fraction), at + 1)
        assert line.live.progress == line.state.row(line.live).progress == shown
    line.says(protocol.Progressed(1.0), 90)
    line.state = State(line.store, line.state.id, Plugins.installed())
    line.live = next(t for t in line.state.trials.values() if t.id == line.live.id)
    line.says(protocol.Progressed(0.5), 91)
    assert line.live.progress == 0.5


def test_an_answer_says_too_what_is_committed(line: Line) -> None:
    line.says(protocol.Reported("mine", 3, {"x": 1}), 1)
    line.says(protocol.AskTarget(), 2)
    assert line.active.replied == {1: 2}


def test_completion_at_the_target_replaces_no_report(line: Line) -> None:
    line.says(protocol.Validated(10, {"loss": 1.0, "other": 2.0}, None), 1)
    answer = line.says(protocol.Completed(10, {"loss": 1.0}, 10), 2)
    assert answer.target.n is None
    assert line.reports == [("validation", 10, {"loss": 1.0, "other": 2.0})]
    assert line.says(protocol.Completed(10, {"loss": 1.0}, 10), 2).target.n is None


def test_and_is_one_where_there_was_none(line: Line) -> None:
    assert line.says(protocol.Completed(10, {"loss": 1.0}, 10), 1).target.n is None
    assert line.reports == [("validation", 10, {"loss": 1.0})]


def test_one_that_is_as_good_as_the_best_is_not_the_best(line: Line) -> None:
    line.says(protocol.Validated(5, {"loss": 1.0}, None), 1)
    assert line.says(protocol.Validated(6, {"loss": 1.0}, None), 2).target.best is False
    assert line.says(protocol.Completed(10, {"loss": 1.0}, 10), 3).target.best is False


def test_checkpoint_is_recorded_once_observed_and_acknowledged(line: Line) -> None:
    for _ in range(2):
        assert line.says(protocol.Checkpointed(MANIFEST, "file:///there"), 1) == protocol.Reply(
            number=1
        )
    assert [row.uuid for row in line.store.checkpoints.list(trial_id=line.live.id)] == ["u"]
    assert line.observer.saved == [("u", "u")]
    for _ in range(2):
        assert line.says(protocol.Deleted("u"), 2) == protocol.Reply(number=2)
    assert str(line.store.checkpoints.get("u").state) == "DELETED"


def test_questions_are_answered_as_things_stand(line: Line) -> None:
    assert line.says(protocol.AskBest(), 1).value is None
    line.says(protocol.Validated(5, {"loss": 1.0}, None), 2)
    assert line.says(protocol.AskBest(), 3).value == 1.0
    assert line.says(protocol.AskTarget(), 4).target == Target(n=10, unit="batches")


def test_the_last_word_of_a_rank_is_kept_and_answered(line: Line) -> None:
    word = protocol.Finished(Outcome.ERROR, "oh", "trace")
    for _ in range(2):
        assert line.says(word, 1, rank=3) == protocol.Reply(number=1)
    assert (line.active.outcome, line.active.message, line.active.spoken) == (
        Outcome.ERROR,
        "oh",
        {3},
    )


def test_failing_message_is_neither_acknowledged_nor_answered(line: Line) -> None:
    with pytest.raises(DetError):
        line.says(protocol.Deleted("nothing of the kind"), 1)
    assert line.active.acked == line.store.runs.read_acked(line.active.run.id) == {}
    assert line.engine.answers == []


@pytest.mark.parametrize(
    ("error", "said"),
    [(DetError("no such thing"), "no such thing"), (KeyError("x"), "KeyError: 'x'")],
)
def test_failed_request_gets_an_error_reply(line: Line, error: Exception, said: str) -> None:
    """An event that fails is acknowledged as the mistake of its run."""
    asked = WorkerMessage(7, 2, 4, protocol.Envelope(9, protocol.AskTarget()))
    assert report_failed_message(line.engine, line.active, asked, error)
    assert line.engine.answers == [(7, 4, protocol.Reply(9, error=said))]
    assert line.active.outcome is None
    told = WorkerMessage(7, 2, 4, protocol.Envelope(10, protocol.Progressed(0.5)))
    assert report_failed_message(line.engine, line.active, told, error) is False
    assert line.engine.confirmed == [(7, 4, 10)]
    assert (line.active.outcome, line.active.spoken) == (Outcome.MISTAKE, {2})
    assert line.active.message == f"its message 'Progressed' could not be handled: {said}"

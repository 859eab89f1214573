"""Recordings of scripts are taken up by another home or a server, each record once."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.det_driver.test_recording import same, train

from det_core import core
from det_core.config import from_json
from det_core.errors import DetError, StoreError
from det_core.hooks.recording import OutsideRun
from det_core.train.host import Outcome
from det_driver.client import Client
from det_driver.recording import Accepted, Outgoing, Owner, Receiver, Taking, recordings, sync
from det_driver.recording._experiment import (
    CheckpointRecord,
    DeletionRecord,
    EndRecord,
    ProgressRecord,
    ReportRecord,
    read_identifiers,
)
from det_driver.recording._script import _open
from det_driver.remote import Lost
from det_driver.store import ExperimentState, Store, TrialState

ERROR = core.DefaultConfig(name="mine", hparams={"lr": 0.1}, searcher={"metric": "error"})


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that scripts record into, instead of the home of this test."""
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DET_RECORD", str(tmp_path / "offline"))
    script = tmp_path / "train.py"
    script.write_text("print('trains')\n")
    monkeypatch.setattr(sys, "argv", [str(script)])
    return tmp_path / "offline"


def known(home: Path, id: int = 1) -> dict[str, Any]:
    """Return what a home knows of an experiment, with neither its numbers nor its processes."""
    with Store.reader(home) as store:
        experiment, trials = store.experiments.get(id), store.trials.list(id)
        return {
            "experiment": [
                *(experiment.name, experiment.state, experiment.progress, experiment.metric),
                *(experiment.started, experiment.ended, experiment.reason, experiment.labels),
            ],
            "trials": [
                [
                    *(each.request, each.hparams, each.state, each.batches, each.progress),
                    *(each.best_metric, each.best_batches, each.latest_metric, each.runs),
                    *(each.latest_checkpoint, each.started, each.ended, each.exit_reason),
                ]
                for each in trials
            ],
            "runs": [
                [run.number, run.first_batch, run.started, run.ended, run.outcome, run.reason]
                for each in trials
                for run in store.runs.list(each.id)
            ],
            "metrics": [
                [archived, each.group, each.batches, each.time, json.dumps(each.values)]
                for trial in trials
                for archived in (False, True)
                for each in store.metrics.read(trial_id=trial.id, archived=archived)
            ],
            "checkpoints": [
                [row.uuid, row.batches, row.state, row.storage, row.size, row.metadata, row.created]
                for each in trials
                for row in store.checkpoints.list(trial_id=each.id)
            ],
        }


def send_all(source: Path, home: Path) -> list[int]:
    """Have a home take up what a directory has, and return the numbers there."""
    return [sync(source, id, home, {}).experiment for id in recordings(source)]


def test_directory_is_taken_up_whole_and_once(offline: Path, tmp_path: Path) -> None:
    with core.init(defaults=ERROR, unmanaged=same()) as context:
        train(context, 1, 5)
        context.train.report_metrics("odd", 3, {"nan": float("nan"), "text": "ä\udcff"})
    home = tmp_path / "home"
    assert not Store.is_at(home)
    assert send_all(offline, home) == [1]
    assert known(home) == known(offline)
    done = sync(offline, 1, home, {})
    assert (done.experiment, done.sent.reports, done.sent.checkpoints) == (1, 0, 0)
    assert known(home) == known(offline)
    directory = home / "experiments" / "1"
    assert (directory / "code" / "train.py").read_text() == "print('trains')\n"
    assert json.loads((directory / "provenance.json").read_text())["python"]


def test_later_reports_follow_those_of_an_earlier_time(offline: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for first, last in ((1, 5), (6, 9)):
        with core.init(defaults=ERROR, unmanaged=same()) as context:
            train(context, first, last)
        assert send_all(offline, home) == [1]
    assert known(home) == known(offline)
    (trial,) = known(home)["trials"]
    assert trial[8] == 2


def test_running_script_is_taken_up_as_far_as_it_is(offline: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with core.init(defaults=ERROR) as context:
        train(context, 1, 3)
        sync(offline, 1, home, {})
        with Store.reader(home) as store:
            experiment = store.experiments.get(1)
            assert experiment.state is ExperimentState.ACTIVE
            assert store.experiments.orphaned(experiment)
        train(context, 4, 6)
    sync(offline, 1, home, {})
    assert known(home) == known(offline)


def test_two_machines_record_trials_of_one_experiment(offline: Path, tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    with core.init(unmanaged=same(trial="a")) as context:
        train(context, 1, 4)
    shutil.move(offline, other)
    for trial in ("b", "a"):
        with core.init(unmanaged=same(trial=trial)) as context:
            train(context, 3, 5)
    assert {*send_all(other, home), *send_all(offline, home)} == {1}
    with Store.reader(home) as store:
        assert [each.runs for each in store.trials.list(1)] == [2, 1]
        a = store.trials.list(1)[0].id
        assert [each.batches for each in store.metrics.read(trial_id=a, group="training")] == [
            *(1, 2, 3, 4, 5)
        ]


def test_exported_experiment_takes_up_later_reports(offline: Path, tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "file"
    with core.init(defaults=ERROR, unmanaged=same()) as context:
        train(context, 1, 3)
    Client(offline).get_experiment(1).export(file)
    with Store(home) as store:
        store.experiments.create(name="other", config="{}")
    made = Client(home).import_experiment(file)
    with core.init(defaults=ERROR, unmanaged=same()) as context:
        train(context, 4, 6)
    assert send_all(offline, home) == [made.id] == [2]
    assert known(home, 2)["metrics"] == known(offline)["metrics"]


def test_home_says_where_checkpoints_of_others_are(offline: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with core.init(checkpoint_storage=str(tmp_path / "kept")) as context:
        train(context, 1, 2)
    send_all(offline, home)
    (checkpoint,) = Client(home).get_experiment(1).get_trials()[0].list_checkpoints()
    with pytest.raises(StoreError, match=f"{tmp_path}/kept/{checkpoint.uuid} on "):
        checkpoint.download(tmp_path / "target")
    Client(home).get_experiment(1).delete()
    assert (tmp_path / "kept" / checkpoint.uuid).is_dir()


def test_two_copies_that_have_both_gone_on_are_refused(offline: Path, tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"

    def record(last: int) -> None:
        with core.init(unmanaged=same()) as context:
            train(context, last, last)

    record(1)
    shutil.copytree(offline, copy)
    record(2)
    send_all(offline, home)
    with pytest.raises(DetError, match="another copy of this directory has gone on"):
        send_all(copy, home)
    shutil.rmtree(offline)
    shutil.move(copy, offline)
    record(3)
    before = known(home)
    with pytest.raises(DetError, match="another copy of this directory has gone on"):
        send_all(offline, home)
    assert known(home) == before


def change(home: Path, sql: str) -> None:
    database = sqlite3.connect(home / "experiments" / "1" / "experiment.db")
    with database:
        database.execute(sql)
    database.close()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE journal SET event = '{'", "a record of a script is damaged: "),
        ("UPDATE journal SET event = '[1]'", "a record of a script is damaged: "),
        (
            'UPDATE journal SET event = \'{"time":1e99,"before":"","records":[]}\'',
            "damaged: it is of the time 1e",
        ),
        (
            'UPDATE journal SET event = \'{"time":1,"before":"","records":[["report","a",1,{}]]}\'',
            "a record of a script comes before its beginning",
        ),
        (
            "UPDATE journal SET event = "
            '\'{"time":1,"before":"","records":[["deleted","../../x"]]}\'',
            "a record of a script is damaged: ",
        ),
        ("DELETE FROM journal WHERE seq = 1", "has other earlier records"),
        ("PRAGMA user_version = 99", "newer than the"),
    ],
)
def test_damaged_directory_leaves_the_home_as_it_was(
    offline: Path, tmp_path: Path, sql: str, message: str
) -> None:
    with core.init(unmanaged=same()) as context:
        train(context, 1, 2)
    change(offline, sql)
    with pytest.raises(DetError, match=message):
        send_all(offline, tmp_path / "home")
    if Store.is_at(tmp_path / "home"):
        with Store.reader(tmp_path / "home") as store:
            assert not [each for s in store.experiments.list() for each in s.trials]


def test_newer_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DetError, match="has format 99, and 1 is known here; upgrade det"):
        Receiver(tmp_path).take(Taking(id="a", config="{}", format=99), Owner())


def test_variable_names_how_a_script_is_recorded(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with core.init():
        pass
    assert f"of {offline}; send it later: det sync {offline}" in capsys.readouterr().err
    monkeypatch.setenv("DET_RECORD", "offline")
    with core.init():
        pass
    assert "send it later: det sync 1\n" in capsys.readouterr().err
    ids = read_identifiers(tmp_path / "home" / "experiments" / "1")
    assert ids is not None
    assert ids.wanted == ""
    monkeypatch.setenv("DET_RECORD", "some/dir")
    with pytest.raises(core.ArgumentError, match="0, 1, offline, or the absolute path"):
        core.init()


# Any sequence of records, kills and broken connections

_STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("report"),
            st.sampled_from(["training", "validation", "x"]),
            st.integers(0, 12),
            st.one_of(st.none(), st.floats(), st.just("text")),
        ),
        st.tuples(st.just("checkpoint"), st.integers(0, 12)),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("progress"), st.floats(0, 1)),
        # The script ends, or is killed, and another one begins.
        st.tuples(st.just("end"), st.sampled_from(list(Outcome)), st.sampled_from("ab")),
        st.tuples(st.just("kill"), st.sampled_from(["a", "b", None])),
        # The sender sends once: the connection breaks before or after it is taken up, or not.
        st.tuples(st.just("send"), st.sampled_from(["", "before", "after"]), st.booleans()),
        # The sender, or the server, is another one from then on.
        st.tuples(st.sampled_from(["new sender", "new server", "silence"])),
    ),
    max_size=40,
)


class _Machine:
    """A machine that records, and the connection to a home that takes it up."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.target = target
        self.breaks = ""
        self.receiver = Receiver(target)
        self.uuids: list[str] = []
        self._leave: Callable[[], object] = lambda: None
        self.begin("a")
        self.new_sender()

    def begin(self, trial: str | None) -> None:
        from contextlib import ExitStack

        self._leave()
        config = from_json('{"name": "x", "searcher": {"name": "single", "metric": "m"}}')
        run = OutsideRun(
            home=self.source, config=config, hparams={}, experiment="e", trial=trial, offline=True
        )
        held = ExitStack()
        self.store = held.enter_context(Store(self.source))
        self.recorded = _open(self.store, run, "", held)
        self._leave = held.close

    def close(self) -> None:
        self._leave()
        self.receiver.release(all=True)

    def new_sender(self) -> None:
        self.outgoing = Outgoing(self.source, 1, self.take)

    def take(self, given: Taking) -> Accepted:
        if self.breaks == "before":
            raise Lost("before")
        accepted = self.receiver.take(given, Owner())
        if self.breaks == "after":
            raise Lost("after")
        return accepted

    def send(self, breaks: str, is_alive: bool) -> bool:
        self.breaks = breaks
        with Store.reader(self.source) as store, suppress(Lost):
            return self.outgoing.step(store, is_alive=is_alive)
        return True

    def apply(self, step: Sequence[Any]) -> None:
        match step:
            case ("report", group, at, value):
                self.recorded.write([ReportRecord(group, at, {"m": value})])
            case ("checkpoint", at):
                self.uuids.append(f"00000000-0000-4000-8000-{len(self.uuids):012}")
                self.recorded.write([CheckpointRecord(self.uuids[-1], at, "/x", 1, {}, "")])
            case ("delete", number):
                if number < len(self.uuids):
                    self.recorded.write([DeletionRecord(self.uuids[number])])
            case ("progress", fraction):
                self.recorded.write([ProgressRecord(fraction)])
            case ("end", outcome, trial):
                self.recorded.write([EndRecord(outcome, "why", "")])
                self.begin(trial)
            case ("kill", trial):
                self.begin(trial)
            case ("send", breaks, is_alive):
                self.send(breaks, is_alive)
            case ("new sender",):
                self.new_sender()
            case ("new server",):
                # The kernel releases the locks of one that was killed.
                self.receiver.release(all=True)
                self.receiver = Receiver(self.target)
            case ("silence",):
                self.receiver.release(all=True)


@pytest.mark.slow
@settings(max_examples=40)
@given(_STEPS)
def test_each_record_is_taken_up_once_whatever_breaks(steps: list[Sequence[Any]]) -> None:
    with TemporaryDirectory() as place:
        machine = _Machine(Path(place, "source"), Path(place, "target"))
        for step in steps:
            machine.apply(step)
        machine.recorded.write([EndRecord(Outcome.COMPLETED, "", "")])
        while machine.send("", is_alive=False):
            pass
        machine.close()
        undisturbed = Path(place, "undisturbed")
        sync(machine.source, 1, undisturbed, {})
        assert known(machine.target) == known(undisturbed) == known(machine.source)
        with Store.reader(machine.target) as store:
            assert store.experiments.get(1).state is ExperimentState.COMPLETED
            assert not store.experiments.driven(1)


def test_silent_script_is_shown_as_killed_and_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = _Machine(tmp_path / "source", tmp_path / "target")
    machine.apply(("report", "training", 1, 1.0))
    while machine.send("", is_alive=True):
        pass
    with Store.reader(machine.target) as store:
        assert store.experiments.driven(1)
        machine.receiver.release()
        assert store.experiments.driven(1)
        monkeypatch.setattr("time.monotonic", lambda: 1e12)
        machine.receiver.release()
        assert store.experiments.orphaned(store.experiments.get(1))
        monkeypatch.undo()
        machine.apply(("report", "training", 2, 1.0))
        machine.send("", is_alive=True)
        assert store.experiments.driven(1)
        assert store.trials.list(1)[0].state is TrialState.RUNNING
    machine.close()

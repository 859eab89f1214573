"""What a driver leaves to the next one, and what it takes over.

Processes that save, an experiment that nobody drives.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from det_core.checkpoint.manifest import Manifest
from det_core.train.run_setup import Spooled, encode_note
from det_driver.driver import _recover
from det_driver.driver._recover import detach, end_leftovers, note_pause, record_spooled
from det_driver.store import ExperimentState, Run, Store, TrialState
from det_node.process import note_process


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with one experiment, whose lock is held."""
    with Store(tmp_path) as store:
        store.experiments.create(name="x", config="{}", metric="loss")
        with store.lock(1):
            yield store


def run_of(store: Store, request: int = 0) -> Run:
    return store.runs.begin(store.trials.create(1, request, {}, 0).id)


def outcomes(store: Store, trial: int) -> list[str | None]:
    return [run.outcome for run in store.runs.list(trial)]


# Processes that are left


class Left:
    """A process that an earlier driver's run left, which ends by itself after some seconds."""

    def __init__(self, run: Run, seconds: float) -> None:
        run.log_dir.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(["sleep", str(seconds)], start_new_session=True)
        note_process(run.log_dir, self.process.pid)

    def status(self) -> int:
        return self.process.wait(timeout=30)


@pytest.mark.process
def test_what_is_left_is_waited_for_and_its_run_ends_as_lost(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = run_of(store), run_of(store, 1)
    left = Left(run, 0.3)
    (run.log_dir / "scratch").mkdir()
    began = time.monotonic()
    end_leftovers(store, 1, 15.0, lambda: left.process.poll() is not None, executing=[other.id])
    assert time.monotonic() - began < 10
    assert left.status() == 0
    assert (outcomes(store, run.trial_id), outcomes(store, other.trial_id)) == (["lost"], [None])
    assert not (run.log_dir / "scratch").exists()
    assert not capsys.readouterr().err


def test_a_run_of_a_dead_driver_ends_when_it_was_last_seen(store: Store) -> None:
    """Its slots were free since then, also where the next driver comes days later."""
    silent, reported = run_of(store), run_of(store, 1)
    store.metrics.report(reported.trial_id, reported.id, "validation", 4, {"loss": 0.5})
    database = store.experiments._databases.held()
    database.run("UPDATE runs SET started = 1000")
    database.run("UPDATE metrics SET time = 2800")
    end_leftovers(store, 1, 0.0, lambda: True)
    assert [store.runs.get(each.id).ended for each in (silent, reported)] == [1000.0, 2800.0]


@pytest.mark.process
@pytest.mark.parametrize(("patience", "hurries"), [(0.2, False), (15.0, True)])
def test_leftover_is_killed_when_patience_ends_or_on_demand(
    store: Store, patience: float, hurries: bool
) -> None:
    run = run_of(store)
    left = Left(run, 15)
    began = time.monotonic()
    end_leftovers(store, 1, patience, lambda: hurries)
    assert (time.monotonic() - began > 0.15) is not hurries
    assert time.monotonic() - began < 10
    assert left.status() == -9
    assert outcomes(store, run.trial_id) == ["lost"]


@pytest.mark.process
def test_long_wait_is_announced_once_with_process_and_limit(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recover, "_NOTICE_SECONDS", 0.1)
    run = run_of(store)
    left = Left(run, 15)
    end_leftovers(store, 1, 1.0, lambda: False)
    left.status()
    said = (
        f"det: process {left.process.pid} of trial 1 saves, as its driver was lost; waiting for it,"
        " 1 s at most\n"
    )
    assert capsys.readouterr().err == said


# Checkpoints that are left


def test_only_spooled_checkpoints_that_are_new_are_adopted(store: Store) -> None:
    """A damaged note does not prevent it."""
    run = run_of(store)
    spool = store.experiment_dir(1) / "spool"
    spool.mkdir()
    store.checkpoints.record("b", run.trial_id, run.id, 20, storage="", size=1)
    for uuid, batches in (("a", 10), ("b", 20), ("c", 20), ("d", 30)):
        made = Manifest(uuid=uuid, framework="fake", batches=batches, trial_id=run.trial_id)
        (spool / f"{uuid}.json").write_bytes(encode_note(Spooled(run.id, made, "there")))
    (spool / "a-damaged-one.json").touch()
    record_spooled(store, 1)
    assert [row.uuid for row in store.checkpoints.list(experiment_id=1)] == ["b", "c", "d"]
    assert [path.name for path in spool.iterdir()] == ["a-damaged-one.damaged"]


def test_first_checkpoint_of_a_trial_may_precede_training(store: Store) -> None:
    run = run_of(store)
    (store.experiment_dir(1) / "spool").mkdir()
    made = Manifest(uuid="a", framework="fake", batches=0, trial_id=run.trial_id)
    (store.experiment_dir(1) / "spool" / "a.json").write_bytes(
        encode_note(Spooled(run.id, made, "there"))
    )
    record_spooled(store, 1)
    assert [row.uuid for row in store.checkpoints.list(experiment_id=1)] == ["a"]


SPOOLS = """
import sys
from pathlib import Path
from types import SimpleNamespace
from det_core.checkpoint.manifest import Manifest
from det_core.train.run_setup import spool
spool(SimpleNamespace(run_id=1, spool=Path(sys.argv[1])), Manifest(uuid="a", framework="fake", batches=1), "there")
"""


@pytest.mark.process
def test_note_is_synced_before_it_is_renamed(tmp_path: Path, faults: Path) -> None:
    """A machine that goes down loses no note that could be found."""
    (spool := tmp_path / "spool").mkdir()
    strikes = {
        "LD_PRELOAD": str(faults),
        "FAULT_ROOT": str(spool),
        "FAULT_COUNT": str(tmp_path / "count"),
    }
    subprocess.run([sys.executable, "-c", SPOOLS, spool], env={**os.environ, **strikes}, check=True)
    written = (tmp_path / "count").read_text().splitlines()
    assert [line.partition("-")[0] for line in written] == [
        "create /.a",  # and a number, as two threads may note the same
        "write /.a",
        "sync /.a",
        "rename /a.json",
        "sync ",
    ]


# An experiment that nobody drives


def row(store: Store) -> Any:
    return store.experiments.get(1)


def test_experiment_of_a_failed_driver_is_resumable_with_reason(store: Store) -> None:
    going, ended = run_of(store), run_of(store, 1)
    store.trials.update(ended.trial_id, state=TrialState.COMPLETED)
    store.runs.end(ended.id, "completed")
    store.experiments.update(1, state=ExperimentState.ACTIVE, pid=7, boot="b")
    for _ in range(2):
        store.slots.lease(1, 1, ["cpu:0"])
    assert store.slots.waiting() == [1]
    detach(store, 1, "it broke")
    found = row(store)
    assert (found.state, found.reason, found.pid, found.boot) == (
        ExperimentState.ERROR,
        "it broke",
        None,
        None,
    )
    assert found.ended is not None
    assert store.slots.waiting() == []
    assert [trial.state for trial in store.trials.list(1)] == [
        TrialState.PAUSED,
        TrialState.COMPLETED,
    ]
    assert outcomes(store, going.trial_id) == ["abandoned"]
    assert outcomes(store, ended.trial_id) == ["completed"]


def test_failed_driver_keeps_the_state_of_an_ended_experiment(store: Store) -> None:
    """An experiment whose driver is still recorded becomes an error."""
    store.experiments.update(1, state=ExperimentState.COMPLETED, pid=None)
    detach(store, 1, "it broke")
    assert row(store).state is ExperimentState.COMPLETED
    store.experiments.update(1, pid=7)
    detach(store, 1, "it broke")
    assert row(store).state is ExperimentState.ERROR


def test_pause_is_recorded_with_its_reason_once_writable(store: Store) -> None:
    store.experiments.update(1, pid=7, boot="b")
    note_pause(store, 1, "the disk was full")
    found = row(store)
    assert (found.state, found.reason, found.pid, found.boot) == (
        *(ExperimentState.PAUSED, "the disk was full"),
        *(None, None),
    )
    assert found.ended is not None


def test_where_the_disk_is_full_room_is_made_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = store._databases.held()._connection
    connection.execute("PRAGMA query_only = 1")
    monkeypatch.setattr(store, "make_room", lambda: connection.execute("PRAGMA query_only = 0"))
    note_pause(store, 1, "the disk was full")
    assert row(store).reason == "the disk was full"


def test_pause_that_stays_unwritable_is_left_to_the_next_driver(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recover, "_WAITS_SECONDS", 0.5)
    store._databases.held()._connection.execute("PRAGMA query_only = 1")
    began = time.monotonic()
    note_pause(store, 1, "the disk was full")
    assert time.monotonic() - began > 0.4
    store._databases.held()._connection.execute("PRAGMA query_only = 0")
    assert row(store).reason is None

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from det_core.errors import StoreError
from det_driver.store import CheckpointState, ExperimentRow, Run, Store

TAKE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store, store.lock(1):
    Path.unlink = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # after the commit, before the file is gone
    with store.transaction():
        store.journal.append(1, store.commands.take(1)[0].kind)
"""


def test_commands_are_taken_once_and_in_order(store: Store, experiment: ExperimentRow) -> None:
    with Store(store.home) as other:
        for number in range(12):
            other.commands.send(experiment.id, "pause", {"number": number})

    taken = store.commands.take(experiment.id)

    assert [(each.kind, each.args["number"]) for each in taken] == [
        ("pause", number) for number in range(12)
    ]
    assert store.commands.take(experiment.id) == []


def test_a_command_whose_effect_is_undone_is_still_there(
    store: Store, experiment: ExperimentRow
) -> None:
    store.commands.send(experiment.id, "cancel")

    def take_and_fail() -> None:
        with store.transaction():
            assert store.commands.take(experiment.id)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        take_and_fail()

    assert [each.kind for each in store.commands.take(experiment.id)] == ["cancel"]


@pytest.mark.process
def test_command_that_a_killed_driver_journaled_counts_once(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    store.experiments.create(name="x", config="{}")
    store.commands.send(1, "pause")
    assert start(TAKE_AND_DIE, store.home).wait() == -9
    assert len([*(store.experiment_dir(1) / "commands").iterdir()]) == 1

    with store.lock(1):
        assert store.commands.take(1) == []
        assert [event.data for event in store.journal.read(1)] == [b"pause"]
        assert [*(store.experiment_dir(1) / "commands").iterdir()] == []
        store.commands.send(1, "cancel")
        assert [each.kind for each in store.commands.take(1)] == ["cancel"]


def test_asking_does_not_touch_what_the_driver_writes(
    store: Store, experiment: ExperimentRow
) -> None:
    """A driver in the middle of a transaction blocks no command, and no command blocks it.

    A command that had to wait for the transaction would fail.
    """
    with store.transaction(), Store(store.home) as other:
        other.commands.send(experiment.id, "pause")
    assert [each.kind for each in store.commands.take(experiment.id)] == ["pause"]


def test_looking_for_commands_costs_one_look_at_a_directory(
    store: Store, experiment: ExperimentRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commands.send(experiment.id, "pause")
    place = store.experiment_dir(experiment.id) / "commands"
    store.commands.take(experiment.id)
    os.utime(place, (1, 1))  # long ago
    assert store.commands.take(experiment.id) == []

    monkeypatch.setattr(
        Path,
        "glob",
        lambda *_: pytest.fail("the directory is read though nothing has changed in it"),
    )
    assert store.commands.take(experiment.id) == []
    monkeypatch.undo()
    store.commands.send(experiment.id, "cancel")
    assert [each.kind for each in store.commands.take(experiment.id)] == ["cancel"]


def test_commands_within_one_clock_tick_are_all_seen(
    store: Store, experiment: ExperimentRow
) -> None:
    taken = 0
    for _ in range(300):
        store.commands.send(experiment.id, "pause")
        taken += len(store.commands.take(experiment.id))
        store.commands.send(experiment.id, "pause")
        taken += len(store.commands.take(experiment.id))
    assert taken == 600


def test_driver_records_checkpoints_that_others_delete(store: Store, run: Run) -> None:
    store.checkpoints.record("u1", run.trial_id, run.id, 30, storage="", size=10)
    with Store(store.home) as other:
        other.checkpoints.mark_deleted("u1")
    assert store.checkpoints.get("u1").state is CheckpointState.COMPLETED

    assert store.commands.take(1) == []

    assert store.checkpoints.get("u1").state is CheckpointState.DELETED
    assert store.trials.get(run.trial_id).latest_checkpoint is None


def test_a_command_to_nobody_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"^no experiment 6; det list shows those in "):
        store.commands.send(6, "pause")

"""The index is a cache.

Whoever loses it loses nothing, and whoever cannot write it is stopped by nothing.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from det_driver.store import ExperimentRow, ExperimentState, ExperimentSummary, Store, _slots

FINISH = """
import os, signal, sys
from pathlib import Path
from det_driver.store import ExperimentState, Store, boot_id
with Store(Path(sys.argv[1])) as store, store.lock(1):
    store.experiments.update(1, state=ExperimentState.ACTIVE, started=1.0, pid=os.getpid(), boot=boot_id())
    store.index.put = lambda summary: os.kill(os.getpid(), signal.SIGKILL)  # after the commit, before the index is told
    store.experiments.update(1, state=ExperimentState.COMPLETED, pid=None, boot=None, progress=1.0)
"""
HOLD = """
import os, sys, time
from pathlib import Path
from det_driver.store import ExperimentState, Store, boot_id
with Store(Path(sys.argv[1])) as store, store.lock(1):
    store.experiments.update(1, state=ExperimentState.ACTIVE, started=1.0, pid=os.getpid(), boot=boot_id())
    print(store.slots.lease(1, 1, ["cuda:a", "cuda:b"]).devices, flush=True)
    while True:
        time.sleep(0.05)
        store.experiments.update(1, progress=0.5)
"""


@pytest.fixture
def listed(tmp_path: Path) -> list[ExperimentSummary]:
    """What a home lists that has three experiments with trials."""
    with Store(tmp_path) as store:
        for number in range(3):
            made = store.experiments.create(
                name=f"e{number}", config="{}", labels=["l"], metric="loss"
            )
            with store.lock(made.id):
                for request in range(number + 1):
                    trial = store.trials.create(made.id, request, {}, seed=0)
                    store.metrics.report(
                        trial.id,
                        store.runs.begin(trial.id).id,
                        "validation",
                        1,
                        {"loss": 1.0 / made.id},
                    )
                store.experiments.update(made.id, state=ExperimentState.COMPLETED, progress=1.0)
        return store.experiments.list()


def lose(home: Path) -> None:
    for file in home.glob("index.db*"):
        file.unlink()


def damage(home: Path) -> None:
    lose(home)
    (home / "index.db").write_bytes(os.urandom(30_000))


def damage_within(home: Path) -> None:
    with (home / "index.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (os.path.getsize(home / "index.db") - 4096))


@pytest.mark.parametrize("spoil", [lose, damage, damage_within])
def test_a_lost_or_damaged_index_is_made_again_and_said_once(
    tmp_path: Path,
    listed: list[ExperimentSummary],
    spoil: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(tmp_path)

    for open in (Store.reader, Store):
        with open(tmp_path) as store:
            assert store.experiments.list() == listed
            assert store.trials.get(4).experiment_id == 3
    with Store(tmp_path) as store:
        made = store.experiments.create(name="next", config="{}")
        with store.lock(made.id):
            assert store.trials.create(made.id, 0, {}, seed=0).id not in range(1, 7)
    assert made.id == 4
    assert (
        capsys.readouterr().err
        == f"det: {tmp_path}/index.db was missing or damaged, and has been made again of the"
        " directories of 3 experiments\n"
    )


def test_it_is_made_again_while_a_store_has_it_open(
    tmp_path: Path, listed: list[ExperimentSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(tmp_path) as store:
        assert store.experiments.list() == listed
        lose(tmp_path)
        store.experiments.create(name="next", config="{}")
        damage_within(tmp_path)
        assert [each.experiment.name for each in store.experiments.list()] == [
            "next",
            "e2",
            "e1",
            "e0",
        ]
    with Store(tmp_path) as store:
        assert len(store.index.summaries()) == 4


def test_repair_rebuilds_the_index_and_keeps_leases_and_ids(
    tmp_path: Path, listed: list[ExperimentSummary], leased: Callable[[Store], dict[str, int]]
) -> None:
    with Store(tmp_path) as store:
        lease = store.slots.lease(1, 1, ["cpu:0"])
        store.experiments.delete(3)
        with closing(sqlite3.connect(tmp_path / "index.db")) as raw, raw:
            raw.execute("DELETE FROM experiments")
            raw.execute("DELETE FROM blocks")
        assert lease is not None

        assert len(store.index.repair()) == 2

        assert store.index.summaries() == {each.experiment.id: each for each in listed[1:]}
        assert leased(store) == {"cpu:0": 1}
        assert store.experiments.create(name="next", config="{}").id == 4


def test_manually_moved_experiments_are_listed_as_found(
    tmp_path: Path, listed: list[ExperimentSummary]
) -> None:
    (tmp_path / "experiments" / "1").rename(tmp_path / "experiments" / "9")

    with Store.reader(tmp_path) as store:
        assert [each.experiment.id for each in store.experiments.list()] == [9, 3, 2]
        assert store.trials.get(1).experiment_id == 9


@pytest.mark.slow
def test_an_index_that_cannot_be_written_stops_no_experiment(
    tmp_path: Path, listed: list[ExperimentSummary]
) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "index.db", isolation_level=None)) as other,
        Store(tmp_path) as store,
    ):
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with store.lock(1):
            store.experiments.update(1, state=ExperimentState.PAUSED)
            made = [store.trials.create(1, request, {}, seed=0).id for request in range(1, 4)]
            assert store.slots.lease(1, 1, ["cpu:0"]) is None
        assert time.monotonic() - began < 15
        assert made == [1_000_000_001, 1_000_000_002, 1_000_000_003]
        other.execute("ROLLBACK")
        assert store.trials.get(made[0]).request == 1
        assert store.experiments.get(1).state is ExperimentState.PAUSED
        assert store.experiments.list()[2].experiment.state is ExperimentState.COMPLETED, (
            "the index was not told"
        )
        store.index.repair()
        assert store.experiments.list()[2].experiment.state is ExperimentState.PAUSED


@pytest.mark.process
def test_changes_of_a_killed_driver_are_read_from_its_directory(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """They are in the database of the experiment and not yet in the index."""
    store.experiments.create(name="x", config="{}")
    assert start(FINISH, store.home).wait() == -9
    assert store.index.summaries()[1].experiment.state is ExperimentState.ACTIVE

    (found,) = store.experiments.list()

    assert (found.experiment.state, found.experiment.progress) == (ExperimentState.COMPLETED, 1.0)
    assert store.index.summaries()[1] == found


def test_index_gets_progress_once_a_second_and_states_at_once(
    store: Store, experiment: ExperimentRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(
        store.index, "put", lambda s: told.append((str(s.experiment.state), s.experiment.progress))
    )
    for step in range(1, 100):
        store.experiments.update(experiment.id, progress=step / 100)
    store.experiments.update(experiment.id, state=ExperimentState.PAUSED)

    assert told == [("PAUSED", 0.99)]


def test_index_is_updated_after_the_commit_and_not_on_rollback(
    store: Store, experiment: ExperimentRow
) -> None:
    def pause_and_fail() -> None:
        with store.transaction():
            store.experiments.update(experiment.id, state=ExperimentState.PAUSED)
            assert store.index.summaries()[1].experiment.state is ExperimentState.ACTIVE
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pause_and_fail()
    assert store.index.summaries()[1].experiment.state is ExperimentState.ACTIVE
    with store.transaction():
        store.experiments.update(experiment.id, state=ExperimentState.PAUSED)
    assert store.index.summaries()[1].experiment.state is ExperimentState.PAUSED


@pytest.mark.process
def test_devices_stay_their_drivers_when_the_index_is_lost(
    store: Store,
    start: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    leased: Callable[[Store], dict[str, int]],
) -> None:
    for _ in range(2):
        store.experiments.create(name="x", config="{}")
    holder = start(HOLD, store.home)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "('cuda:a',)\n"
    lose(store.home)

    assert store.slots.lease(2, 1, ["cuda:a", "cuda:b"]) is None, "nobody knows yet what is held"
    deadline = time.monotonic() + 20
    while leased(store) != {"cuda:a": 1}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    monkeypatch.setattr(_slots, "NEW_SECONDS", 0)
    granted = store.slots.lease(2, 1, ["cuda:a", "cuda:b"])
    assert granted is not None
    assert (granted.devices, granted.slots) == (("cuda:b",), (1,))

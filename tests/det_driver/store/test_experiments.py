from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from det_core.errors import ExperimentBusy, StoreError
from det_driver.store import Database, ExperimentRow, ExperimentState, Store, TrialState
from det_driver.store._schema import EXPERIMENT


def test_an_experiment_comes_back_as_it_was_created(store: Store) -> None:
    made = store.experiments.create(
        name="digits",
        config='{"name": "digits"}',
        entrypoint="model_def:Trial",
        metric="accuracy",
        smaller_is_better=False,
        description="first",
        labels=["a", "ü"],
    )

    assert store.experiments.get(made.id) == made
    assert (made.labels, made.smaller_is_better, made.state) == (
        ("a", "ü"),
        False,
        ExperimentState.ACTIVE,
    )
    assert made.created > 0
    assert made.started is None


def test_creating_makes_a_directory_with_a_database(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    directory = store.experiment_dir(experiment.id)

    assert directory == store.home / "experiments" / "1"
    assert {path.name for path in directory.iterdir()} <= {
        "experiment.db",
        "experiment.db-wal",
        "experiment.db-shm",
    }
    assert store.code_dir(experiment.id) == directory / "code"


def test_a_new_database_is_like_one_that_was_migrated(store: Store, tmp_path: Path) -> None:
    """It is written as a whole, and not by SQLite."""
    experiment = store.experiments.create(name="x", config="{}")
    place = store.experiment_dir(experiment.id) / "experiment.db"
    store.close()
    with closing(Database(tmp_path / "migrated.db", EXPERIMENT)) as database:
        migrated = database.rows("SELECT type, name, tbl_name, sql FROM sqlite_master")
    assert (tmp_path / "migrated.db").read_bytes()[18:20] == place.read_bytes()[18:20] == b"\2\2"
    assert place.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(place)) as connection:
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        assert found == migrated
        assert connection.execute("PRAGMA user_version").fetchone() == (len(EXPERIMENT),)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_an_experiment_may_be_paused_from_the_beginning(store: Store) -> None:
    made = store.experiments.create(name="x", config="{}", state=ExperimentState.PAUSED)
    assert store.experiments.get(made.id).state is ExperimentState.PAUSED
    assert [each.experiment.state for each in store.experiments.list()] == [made.state]


def test_a_missing_experiment_is_named_with_the_home(store: Store) -> None:
    with pytest.raises(
        StoreError, match=rf"^no experiment 12; det list shows those in {store.home}$"
    ):
        store.experiments.get(12)
    with pytest.raises(StoreError, match=r"^no experiment 12;"):
        store.experiments.update(12, name="x")
    with pytest.raises(StoreError, match=r"^no experiment 12;"):
        store.experiments.delete(12)
    with pytest.raises(StoreError, match=r"^no experiment 12;"), store.lock(12):
        pass


def test_an_update_changes_what_it_names_and_nothing_else(
    store: Store, experiment: ExperimentRow
) -> None:
    store.experiments.update(
        experiment.id, state=ExperimentState.PAUSED, progress=0.5, pid=7, boot="b"
    )

    found = store.experiments.get(experiment.id)

    assert (found.state, found.progress, found.pid, found.boot) == (
        ExperimentState.PAUSED,
        0.5,
        7,
        "b",
    )
    assert (found.name, found.labels, found.created) == (
        experiment.name,
        experiment.labels,
        experiment.created,
    )


def test_an_update_of_a_made_up_column_is_refused(store: Store, experiment: ExperimentRow) -> None:
    with pytest.raises(TypeError, match=r"cannot change .'colour'.; give some of"):
        store.experiments.update(experiment.id, colour="red")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"cannot change nothing"):
        store.experiments.update(experiment.id)


def test_listing_is_newest_first_and_leaves_out_the_archived(store: Store) -> None:
    for name in ("digits", "MNIST digits", "text"):
        store.experiments.create(name=name, config="{}")
    store.experiments.update(3, state=ExperimentState.COMPLETED, archived=True)

    def listed(**filters: object) -> list[int]:
        return [found.experiment.id for found in store.experiments.list(**filters)]  # type: ignore[arg-type]

    assert listed() == [2, 1]
    assert listed(archived=None) == [3, 2, 1]
    assert listed(archived=True) == [3]
    assert listed(archived=None, limit=2) == [3, 2]


def test_summaries_count_trials_by_state_and_name_the_best(
    store: Store, another: Callable[..., ExperimentRow]
) -> None:
    for smaller in (True, False, True):
        another(metric="m", smaller_is_better=smaller)
    made: dict[int, list[int]] = {1: [], 2: []}
    for id in (1, 2):
        for request, value in enumerate([0.5, float("nan"), 0.25]):
            trial = store.trials.create(id, request, {}, seed=0)
            made[id].append(trial.id)
            run = store.runs.begin(trial.id)
            store.metrics.report(trial.id, run.id, "validation", 10, {"m": value})
    store.trials.update(made[1][0], state=TrialState.COMPLETED)

    found = {id: store.experiments.summary(id) for id in (1, 2, 3)}

    assert found[1].trials == {TrialState.COMPLETED: 1, TrialState.RUNNING: 2}
    assert (found[1].best_metric, found[1].best_trial) == (0.25, made[1][2])
    assert (found[2].best_metric, found[2].best_trial) == (0.5, made[2][0])
    assert (found[3].trials, found[3].best_metric, found[3].best_trial) == ({}, None, None)
    for id in found:
        store.experiments.publish(id)
    assert {each.experiment.id: each for each in store.experiments.list()} == found


def test_deleting_leaves_nothing_and_its_ids_are_not_reused(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    with store.lock(experiment.id):
        trial = store.trials.create(experiment.id, 0, {}, seed=0)
    (store.experiment_dir(experiment.id) / "code").mkdir()

    store.experiments.delete(experiment.id)

    assert [*(store.home / "experiments").iterdir()] == []
    assert store.experiments.list() == []
    with pytest.raises(StoreError, match=rf"^no trial {trial.id}; "):
        store.trials.get(trial.id)
    following = store.experiments.create(name="next", config="{}")
    assert following.id == experiment.id + 1
    with store.lock(following.id):
        assert store.trials.create(following.id, 0, {}, seed=0).id > trial.id


def test_an_experiment_that_a_driver_holds_is_not_deleted(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    with Store(store.home) as driver, driver.lock(experiment.id), pytest.raises(ExperimentBusy):
        store.experiments.delete(experiment.id)

    assert store.experiments.get(experiment.id) == experiment


DRIVE = """
import sys, time
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store, store.lock(int(sys.argv[2])):
    print("ready", flush=True)
    worst, count, end = 0.0, 0, time.monotonic() + 2
    trial = store.trials.create(int(sys.argv[2]), 0, {}, 0)
    while time.monotonic() < end:
        began = time.monotonic()
        with store.transaction():
            store.journal.append(int(sys.argv[2]), "{}")
            store.trials.update(trial.id, batches=count)
        store.experiments.update(int(sys.argv[2]), progress=0.5)
        worst, count = max(worst, time.monotonic() - began), count + 1
        time.sleep(0.001)
    print(worst, count)
"""


@pytest.mark.process
def test_deleting_one_does_not_block_drivers_of_others(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Each database has one writer; the index, which all share, nobody waits for."""
    doomed = store.experiments.create(name="x", config="{}")
    with store.lock(doomed.id), store.transaction():
        for request in range(20_000):
            store.trials.create(doomed.id, request, {"x": "x" * 100}, 0)
            store.journal.append(doomed.id, "{}")
    drivers = [
        start(DRIVE, store.home, store.experiments.create(name="y", config="{}").id)
        for _ in range(3)
    ]
    for driver in drivers:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"

    with store.lock(doomed.id), store.transaction():  # in the middle of a change that takes long
        store.trials.create(doomed.id, 20_000, {}, 0)
        time.sleep(0.7)
    store.experiments.delete(doomed.id)

    for driver in drivers:
        worst, count = driver.communicate()[0].split()
        assert float(worst) < 0.5, "a driver that waits for the other's transaction waits 0.7 s"
        assert int(count) > 100


def test_a_directory_that_was_left_behind_is_never_shared(tmp_path: Path) -> None:
    """A store that was lost and made again does not mix its experiments with old files."""
    (tmp_path / "experiments" / "1").mkdir(parents=True)

    with Store(tmp_path) as store:
        assert [store.experiments.create(name="x", config="{}").id for _ in range(2)] == [2, 3]

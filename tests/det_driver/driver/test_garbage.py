"""What is not kept is deleted when its experiment has ended, now or later, and nothing else is."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from det_core import Plugins
from det_core.config import parse, to_json
from det_driver.driver._garbage import collect_garbage, collect_left, expect_garbage
from det_driver.store import ExperimentState, Store

PLUGINS = Plugins.installed()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def experiment(
    store: Store,
    state: ExperimentState = ExperimentState.COMPLETED,
    *,
    smaller_is_better: bool = True,
    **keep: int,
) -> int:
    """An experiment of one trial with checkpoints `N-1` to `N-3`, that nobody drives.

    The latest of them is to be kept.
    """
    keep = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1} | keep
    storage = {"type": "shared_fs", "host_path": str(store.home / "checkpoints"), **keep}
    searcher = {
        "name": "single",
        "metric": "loss",
        "max_length": 10,
        "smaller_is_better": smaller_is_better,
    }
    config = parse(
        {"entrypoint": "m:T", "searcher": searcher, "checkpoint_storage": storage}
    ).config
    made = store.experiments.create(
        name="x", config=to_json(config), metric="loss", smaller_is_better=smaller_is_better
    )
    with store.lock(made.id):
        trial = store.trials.create(made.id, 0, {}, 0)
        run = store.runs.begin(trial.id)
        for batches in (1, 2, 3):
            uuid = f"{made.id}-{batches}"
            (store.home / "checkpoints" / uuid).mkdir(parents=True)
            (store.home / "checkpoints" / uuid / "manifest.json").write_text(
                f'{{"uuid": "{uuid}"}}'
            )
            store.checkpoints.record(uuid, trial.id, run.id, batches, storage="{}", size=1)
        store.experiments.update(made.id, state=state)
    return made.id


def left(store: Store) -> list[str]:
    return sorted(
        path.name
        for path in (store.home / "checkpoints").iterdir()
        if not path.name.startswith(".")
    )


def expected(store: Store) -> list[str]:
    return sorted(path.name for path in (store.home / "garbage").iterdir())


def states(store: Store, id: int) -> list[str]:
    return [str(row.state) for row in store.checkpoints.list(experiment_id=id)]


def test_surplus_checkpoints_are_deleted_and_the_note_is_removed(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    id = experiment(store)
    expect_garbage(store, id)
    expect_garbage(store, id)
    assert expected(store) == ["1"]
    with store.lock(id):
        assert collect_garbage(store, id, PLUGINS) == ["1-1", "1-2"]
    assert left(store) == ["1-3"]
    assert states(store, id) == ["DELETED", "DELETED", "COMPLETED"]
    assert expected(store) == []
    with store.lock(id):
        assert collect_garbage(store, id, PLUGINS) == []
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("smaller", "gone"), [(True, ["1-2", "1-3"]), (False, ["1-1", "1-2"])])
def test_the_best_stays_and_which_that_is_the_searcher_says(
    store: Store, smaller: bool, gone: list[str]
) -> None:
    id = experiment(store, smaller_is_better=smaller, save_experiment_best=1, save_trial_latest=0)
    with store.lock(id):
        for batches in (1, 2, 3):
            store.metrics.report(1, 1, "validation", batches, {"loss": float(batches)})
        assert collect_garbage(store, id, PLUGINS) == gone


def test_what_another_trial_starts_from_stays(store: Store) -> None:
    id = experiment(store)
    other = store.experiments.create(name="y", config="{}")
    with store.lock(other.id):
        store.trials.create(other.id, 0, {}, 0, source_checkpoint="1-1")
    with store.lock(id):
        assert collect_garbage(store, id, PLUGINS) == ["1-2"]


def test_what_cannot_be_deleted_is_said_and_stays_expected(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    id = experiment(store)
    expect_garbage(store, id)
    with store.lock(id):
        store.checkpoints.record("..", 1, 1, 0, storage="{}", size=1)  # no storage takes that name
        assert collect_garbage(store, id, PLUGINS) == ["1-1", "1-2"]
    said = capsys.readouterr().err
    assert said.startswith(
        "det: checkpoints of experiment 1 that are not to be kept are still there: "
    )
    assert said.endswith("; delete them later with det gc\n")
    assert expected(store) == ["1"]
    assert states(store, id) == ["DELETED", "DELETED", "COMPLETED", "COMPLETED"]


def test_interrupted_deletions_resume_after_the_experiment_ended(store: Store) -> None:
    """Experiments that are active or have a driver are left alone."""
    ended, driven, active, lost = (
        experiment(store),
        experiment(store),
        experiment(store, ExperimentState.PAUSED),
        experiment(store),
    )
    for id in (ended, driven, active, lost):
        expect_garbage(store, id)
    shutil.rmtree(store.experiment_dir(lost))
    with Store(store.home) as other, other.lock(driven):
        assert collect_left(store, PLUGINS) == {ended: ["1-1", "1-2"]}
    assert expected(store) == [str(driven)]
    assert states(store, active) == states(store, driven) == ["COMPLETED"] * 3
    assert collect_left(store, PLUGINS) == {driven: ["2-1", "2-2"]}
    assert expected(store) == []


def test_what_cannot_be_read_just_now_stays_expected(store: Store) -> None:
    id = experiment(store)
    expect_garbage(store, id)
    database = store.experiment_dir(id) / "experiment.db"
    store.close()
    database.rename(database.with_suffix(".away"))
    with Store(store.home) as again:
        assert collect_left(again, PLUGINS) == {}
        assert expected(again) == ["1"]


def test_unremovable_note_does_not_block_other_experiments(store: Store) -> None:
    active, ended = experiment(store, ExperimentState.PAUSED), experiment(store)
    expect_garbage(store, ended)
    (store.home / "garbage" / str(active)).mkdir()
    assert collect_left(store, PLUGINS) == {ended: ["2-1", "2-2"]}
    assert expected(store) == [str(active)]


def test_a_home_in_which_nothing_was_expected_has_nothing_left(store: Store) -> None:
    assert collect_left(store, PLUGINS) == {}


def test_that_the_disk_is_full_keeps_no_experiment_from_ending(store: Store) -> None:
    (store.home / "garbage").write_text("no directory")
    expect_garbage(store, 1)


FRAIL = """
    import os, signal
    from det_core import hookimpl
    from det_core.config import StorageConfig
    from det_core.hooks.records import StorageRecord
    from det_core.storage import LocalStorage

    class Config(StorageConfig, frozen=True, tag="frail"):
        pass

    class Frail(LocalStorage):
        def delete(self, uuid, *what):
            if os.environ.get("DIES") and self.exists(uuid):  # and no copy of TensorBoard's files
                os.kill(os.getpid(), signal.SIGKILL)
            return super().delete(uuid, *what)

    @hookimpl
    def det_storages():
        yield StorageRecord(name="frail", open=lambda config, root: Frail(root), config=lambda: Config)
"""


def test_next_driver_finishes_the_deletions_of_a_killed_driver(
    project: Any, plugin_path: Path
) -> None:
    (plugin_path / "frail_hooks.py").write_text(textwrap.dedent(FRAIL))
    points = plugin_path / "fakes-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "frail = frail_hooks\n")
    search = "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: 20}\n"
    frail = "min_checkpoint_period: 5\ncheckpoint_storage: {type: frail, save_experiment_best: 0}\n"
    det, root = project.det, project.det.home / "checkpoints"

    det(
        "run",
        project.write(search + frail),
        "--quiet",
        status=-9,
        env=project.environ(1, {"DIES": "1"}),
    )
    assert det.json("show", "1")["experiment"]["state"] == "COMPLETED"
    assert len([*root.glob("[0-9a-f]*")]) == 4
    det("run", project.write(search, "next.yaml"), "--quiet", env=project.environ(1))
    kept = [
        each["uuid"]
        for id in "12"
        for each in det.json("checkpoint", "list", id)
        if each["state"] == "COMPLETED"
    ]
    assert len(kept) == 2
    assert sorted(path.name for path in root.glob("[0-9a-f]*")) == sorted(kept)


@pytest.mark.parametrize("name", ["1x", "1.bak", "1²", "9" * 30])
def test_a_file_that_is_no_note_is_left_alone(store: Store, name: str) -> None:
    (store.home / "garbage").mkdir()
    (store.home / "garbage" / name).touch()
    ended = experiment(store)
    expect_garbage(store, ended)
    assert collect_left(store, PLUGINS) == {ended: ["1-1", "1-2"]}

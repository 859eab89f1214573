"""Experiments, trials and checkpoints as a notebook sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from det_core.errors import CheckpointError, ConfigError, StoreError
from det_driver.client import Client, Experiment
from det_driver.store import Store

SCRIPT = """
import json, os, time
from det_core import core

with core.init() as context:
    info = context.info
    lr = info.trial.hparams["lr"]
    print("training with", lr)
    for step in range(1, 4):
        context.train.report_training_metrics(step, {"loss": 1 / step})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "weight.json").write_text(json.dumps(lr * step))
        context.train.report_validation_metrics(step, {"error": abs(step - 2) + lr})
        while os.path.exists(os.environ.get("WAIT_FOR", "")):
            time.sleep(0.05)
            if context.preempt.should_preempt():
                raise SystemExit(0)
"""
CONFIG = {
    "name": "notebook",
    "entrypoint": "python3 train.py",
    "hyperparameters": {"lr": {"type": "categorical", "vals": [0.2, 0.1]}},
    "searcher": {"name": "grid", "metric": "error", "max_concurrent_trials": 1},
    "checkpoint_policy": "none",
    "checkpoint_storage": {
        "type": "directory",
        "container_path": "CHECKPOINTS",
        "save_trial_latest": 3,
        "save_trial_best": 3,
    },
}


@pytest.fixture
def client(det: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    det.cwd.joinpath("train.py").write_text(SCRIPT)
    monkeypatch.setenv("DET_HOME", str(det.home))
    monkeypatch.chdir(det.cwd)
    return Client()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    storage = {**CONFIG["checkpoint_storage"], "container_path": str(tmp_path / "checkpoints")}  # type: ignore[dict-item]
    return {**CONFIG, "checkpoint_storage": storage}


@pytest.fixture
def done(client: Client, config: dict[str, Any], det: Any) -> Experiment:
    experiment = client.create_experiment(config, det.cwd)
    assert experiment.wait() == "COMPLETED"
    return experiment


def test_an_experiment_made_of_a_mapping_runs_in_the_background(
    done: Experiment, client: Client
) -> None:
    assert (done.name, done.state, done.progress, done.metric) == (
        "notebook",
        "COMPLETED",
        1.0,
        "error",
    )
    assert [trial.hparams for trial in done.list_trials()] == [{"lr": 0.1}, {"lr": 0.2}]
    assert done.config["entrypoint"] == "python3 train.py"
    assert [e.id for e in client.list_experiments()] == [done.id]
    assert client.get_experiment(done.id).await_first_trial().id == 1


def test_what_a_trial_reported_and_printed(done: Experiment) -> None:
    [first, second] = done.list_trials()
    assert [(m.batches, m.values["loss"]) for m in first.iter_metrics("training")] == [
        (1, 1.0),
        (2, 0.5),
        (3, 1 / 3),
    ]
    assert "training with 0.2\n" in list(second.logs())
    assert (first.state, first.best_metric) == ("COMPLETED", 0.1)
    assert first.get_experiment().id == done.id


def test_checkpoints_by_rank_and_their_files(
    done: Experiment, client: Client, tmp_path: Path
) -> None:
    best = done.top_checkpoint()
    assert (best.batches, best.metric, best.trial_id) == (2, 0.1, 1)
    assert [c.trial_id for c in done.top_n_checkpoints(5)] == [1, 2]
    trial = client.get_trial(2)
    assert [c.batches for c in trial.list_checkpoints()] == [3, 2, 1]
    assert trial.select_checkpoint(latest=True).batches == 3
    assert trial.top_checkpoint().metric == pytest.approx(0.2)
    where = client.get_checkpoint(best.uuid[:8]).download(tmp_path / "here")
    assert Path(where, "weight.json").read_text() == "0.2"
    (tmp_path / "here/__pycache__").mkdir()
    (tmp_path / "here/__pycache__/train.pyc").touch()
    assert best.download(tmp_path / "here") == where, (
        "it is there already, and its code was imported"
    )


def test_a_directory_that_holds_something_else_is_not_written_to(
    done: Experiment, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is not empty; name a directory"):
        done.top_checkpoint().download(tmp_path)
    # Another download of the checkpoint finds a file too many.
    place = Path(done.top_checkpoint().download(tmp_path / "own"))
    assert done.top_checkpoint().download(place) == str(place)
    (place / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is not empty; name a directory"):
        done.top_checkpoint().download(place)


def test_checkpoint_without_framework_can_only_be_downloaded(done: Experiment) -> None:
    with pytest.raises(
        CheckpointError, match=r"no installed plugin loads those; download\(\) gives its files"
    ):
        done.top_checkpoint().load()


def test_a_deleted_checkpoint_is_gone_from_the_lists(done: Experiment) -> None:
    best = done.top_checkpoint()
    best.delete()
    assert best.state == "DELETED"
    assert best.uuid not in [c.uuid for c in done.list_checkpoints()]
    with pytest.raises(CheckpointError, match="trial 1 has no checkpoint"):
        done.list_trials()[0].select_checkpoint(uuid=best.uuid)


def test_exactly_one_choice_of_a_checkpoint(done: Experiment) -> None:
    with pytest.raises(ValueError, match="exactly one of latest, best and uuid"):
        done.list_trials()[0].select_checkpoint(latest=True, best=True)


def test_the_code_of_an_experiment_can_be_had_back(done: Experiment, tmp_path: Path) -> None:
    assert Path(done.download_code(tmp_path / "code"), "train.py").read_text() == SCRIPT


def test_archived_experiments_are_left_out(done: Experiment, client: Client) -> None:
    done.archive()
    assert client.list_experiments() == []
    assert [e.archived for e in client.list_experiments(archived=None)] == [True]
    done.unarchive()
    assert len(client.list_experiments()) == 1


@pytest.fixture
def waiting(
    client: Client, config: dict[str, Any], det: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Experiment]:
    """An experiment whose first trial waits for a file to go."""
    det.cwd.joinpath("wait").touch()
    monkeypatch.setenv("WAIT_FOR", str(det.cwd / "wait"))
    yield Client().create_experiment(config, det.cwd)
    det.cwd.joinpath("wait").unlink(missing_ok=True)


def test_pause_activate_and_cancel(waiting: Experiment, det: Any, wait_until: Any) -> None:
    waiting.await_first_trial()
    with pytest.raises(StoreError, match="only one that has ended can be archived"):
        waiting.archive()
    waiting.pause()
    assert waiting.wait() == "PAUSED"
    waiting.activate()
    wait_until(lambda: waiting.list_trials()[0].state == "RUNNING", "the trial to go on")
    waiting.kill()
    assert waiting.wait() == "CANCELED"
    with pytest.raises(StoreError, match="is canceled already; nothing is left to pause"):
        waiting.pause()


def test_an_experiment_that_is_not_started_is_paused(
    client: Client, config: dict[str, Any], det: Any
) -> None:
    experiment = client.create_experiment(config, det.cwd, start=False)
    assert (experiment.state, experiment.list_trials()) == ("PAUSED", [])
    experiment.cancel()
    assert experiment.state == "CANCELED"
    with pytest.raises(StoreError, match="ended without a trial"):
        experiment.await_first_trial()


def test_a_wrong_configuration_makes_nothing(
    client: Client, config: dict[str, Any], det: Any
) -> None:
    with pytest.raises(ConfigError, match="sercher"):
        client.create_experiment({**config, "sercher": {}}, det.cwd)
    assert not det.home.exists() or client.list_experiments() == []


def test_numbers_that_do_not_exist_are_named(done: Experiment, client: Client) -> None:
    for ask in (client.get_experiment, client.get_trial):
        with pytest.raises(StoreError, match="99"):
            ask(99)


def test_listing_checkpoints_reads_only_those_of_the_trial(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        id = store.experiments.create(name="x", config="{}", metric="loss").id
        with store.lock(id) as database:
            for request in range(2):
                trial = store.trials.create(id, request, {}, 0)
                run = store.runs.begin(trial.id)
                store.checkpoints.record(f"u{request}", trial.id, run.id, 10, storage="", size=1)
            database.run("UPDATE checkpoints SET metadata = 'cannot be read' WHERE uuid = 'u0'")

    assert [c.uuid for c in Client(tmp_path).get_trial(2).list_checkpoints()] == ["u1"]
    with pytest.raises(StoreError, match="Expecting value"):
        Client(tmp_path).get_trial(1).list_checkpoints()


@pytest.mark.parametrize("smaller", [True, False])
def test_the_first_of_equal_checkpoints_is_the_best(tmp_path: Path, smaller: bool) -> None:
    """It is at the position that `det show` names, and the one that is kept as the best."""
    with Store(tmp_path) as store:
        id = store.experiments.create(
            name="x", config="{}", metric="e", smaller_is_better=smaller
        ).id
        with store.lock(id):
            for request in range(2):
                trial = store.trials.create(id, request, {}, 0)
                run = store.runs.begin(trial.id)
                for batches in (20 - 10 * request, 30):
                    store.metrics.report(trial.id, run.id, "validation", batches, {"e": 1.0})
                    store.checkpoints.record(
                        f"{trial.id}-{batches}", trial.id, run.id, batches, storage="", size=1
                    )

    experiment = Client(tmp_path).get_experiment(id)
    ranked = [checkpoint.uuid for checkpoint in experiment.list_checkpoints()]
    assert ranked == ["1-20", "1-30", "2-10", "2-30"]
    assert experiment.list_trials()[0].top_checkpoint().uuid == "1-20"


def test_notebook_wait_shows_one_line_and_a_table_of_results(
    client: Client, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = client.create_experiment({**config, "name": "<b>"}, ".")
    experiment.wait(progress=True)
    lines = capsys.readouterr().out.split("\r")
    best = (
        1 if experiment.list_trials()[0].hparams["lr"] == 0.1 else 2
    )  # the order of a grid is drawn
    assert (
        lines[-1].rstrip()
        == f"experiment 1 (<b>) is completed, 100%, 2 completed, best error 0.1 (trial {best})"
    )
    assert all("\n" not in line for line in lines[:-1])
    shown = experiment._repr_html_()
    assert "<p>experiment 1 (&lt;b&gt;) is completed, 100%" in shown
    assert "<th>trial</th><th>state</th><th>best error</th><th>batches</th><th>lr</th>" in shown
    rows = [shown.index(f"<td>{trial}</td><td>COMPLETED</td>") for trial in (best, 3 - best)]
    assert rows == sorted(rows)
    assert experiment.importances() == {}
    experiment.set_name("again")
    experiment.set_labels(["a", "b", "a"])
    experiment.set_description("noted")
    found = client.get_experiment(1)
    assert (found.name, found.labels, found.description, found.reason) == (
        "again",
        ["a", "b"],
        "noted",
        "",
    )
    with pytest.raises(StoreError, match=r"no trial of experiment 1 has a chosen 'rl'; known: lr"):
        experiment.slices("rl")

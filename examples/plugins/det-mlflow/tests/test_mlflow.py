"""What det tells MLflow, read back by MLflow's own client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

SCRIPT = """
from det_core import core

with core.init() as context:
    print("hello from the trial")
    for batch in (5, 10):
        context.train.report_training_metrics(batch, {"loss": 1 / batch, "note": "text"})
        context.train.report_validation_metrics(batch, {"error": 2 / batch})
"""
AT_FIRST_FAILS = """
import pathlib

mark = pathlib.Path("PATH/mark")
if not mark.exists():
    mark.touch()
    raise SystemExit(3)
"""
CONFIG = """
name: told
entrypoint: python3 train.py
hyperparameters: {factor: 3, net: {hidden: 8}}
searcher: {name: single, metric: error}
plugins: {mlflow: {tracking_uri: "URI", artifact_location: "ARTIFACTS"}}
"""


class Project:
    """A directory with a script, and `det` with a home of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"sqlite:///{path}/mlflow.db"
        self.write("train.py", SCRIPT)
        self.write(
            "const.yaml",
            CONFIG.replace("URI", self.uri).replace("ARTIFACTS", f"file://{path}/artifacts"),
        )

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def det(self, *arguments: str, status: int = 0) -> str:
        env = {**os.environ, "DET_HOME": str(self.path / "home"), "DET_STRICT_PLUGINS": "0"}
        done = subprocess.run(
            [sys.executable, "-m", "det_driver.cli", *arguments],
            cwd=self.path,
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def runs(self, experiment: str = "told") -> list[Run]:
        client = MlflowClient(tracking_uri=self.uri)
        found = client.get_experiment_by_name(experiment)
        return client.search_runs([found.experiment_id]) if found else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_trial_is_a_run_with_its_parameters_metrics_and_logs(project: Project) -> None:
    project.det("run", "const.yaml")
    (run,) = project.runs()
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "trial 1"
    assert run.data.params == {"factor": "3", "net.hidden": "8"}
    client = MlflowClient(tracking_uri=project.uri)
    history = {
        name: client.get_metric_history(run.info.run_id, name)
        for name in ("training/loss", "validation/error")
    }
    assert {name: [(m.step, m.value) for m in metrics] for name, metrics in history.items()} == {
        "training/loss": [(5, 0.2), (10, 0.1)],
        "validation/error": [(5, 0.4), (10, 0.2)],
    }
    (logs,) = client.list_artifacts(run.info.run_id, "logs")
    names = [
        Path(artifact.path).name for artifact in client.list_artifacts(run.info.run_id, logs.path)
    ]
    texts = [
        (Path(client.download_artifacts(run.info.run_id, f"{logs.path}/{name}"))).read_text()
        for name in names
    ]
    assert any("hello from the trial" in text for text in texts)


def test_an_experiment_that_does_not_ask_is_left_alone(project: Project) -> None:
    quiet = (project.path / "const.yaml").read_text().partition("plugins:")[0]
    project.write("const.yaml", quiet)
    project.det("run", "const.yaml")
    assert not (project.path / "mlflow.db").exists()


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest(project: Project) -> None:
    said = project.det("run", "const.yaml", "--config", "plugins.mlflow.experimnt=x", status=2)
    assert "plugins.mlflow.experimnt" in said
    assert "experiment" in said.replace("experimnt", "")


def test_a_store_that_cannot_be_used_stops_nobody(project: Project) -> None:
    said = project.det(
        "run", "const.yaml", "--config", "plugins.mlflow.tracking_uri=gopher://nowhere"
    )
    assert "experiment 1 is completed" in said
    assert "observer 'mlflow' failed in det_" in said
    assert "the experiment goes on" in said


def test_a_trial_that_fails_is_a_failed_run_of_the_name_that_was_asked_for(
    project: Project,
) -> None:
    project.write("train.py", "raise SystemExit(3)\n")
    project.det(
        "run",
        "const.yaml",
        "--config",
        "plugins.mlflow.experiment=other",
        "--config",
        "max_restarts=0",
        status=1,
    )
    (run,) = project.runs("other")
    assert run.info.status == "FAILED"


def test_a_trial_that_is_tried_again_is_one_run(project: Project) -> None:
    project.write("train.py", AT_FIRST_FAILS.replace("PATH", str(project.path)) + SCRIPT)
    project.det("run", "const.yaml", "--config", "max_restarts=1")
    (run,) = project.runs()
    assert run.info.status == "FINISHED"
    assert run.data.tags["det.outcome"] == "completed"
    client = MlflowClient(tracking_uri=project.uri)
    assert len(client.list_artifacts(run.info.run_id, "logs")) == 2

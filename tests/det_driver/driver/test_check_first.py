"""A trial is tried before it trains.

What would lose its training is found first, and the training is what it would have been.
"""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

MODEL = """
    import os
    from pathlib import Path
    from det_testing.fakes import OwnedOneVar

    class Trial(OwnedOneVar):
        def build_model(self):
            checking = os.environ.get("DET_CHECKING", "0")
            with open(Path(os.environ["DET_HOME"]) / "built", "a") as file:
                file.write(checking)
            return super().build_model()

"""
CORRECTED = """
    from det_testing import fakes

    validate = fakes.Training.validate
    fakes.Training.validate = lambda self: validate(self) | {"accuracy": 1.0}
"""
SINGLE = """
hyperparameters: {lr: 0.01, noise: 0.5}
searcher: {name: single, metric: METRIC, max_length: 40}
min_validation_period: 20
"""


@pytest.mark.process
def test_check_before_training_does_not_change_the_training(project: Any) -> None:
    project.det.cwd.joinpath("model_def.py").write_text(textwrap.dedent(MODEL))
    head = (
        "name: x\nentrypoint: model_def:Trial\nreproducibility: {experiment_seed:"
        " 7}\nmax_restarts: 0\n"
    )
    built = project.det.home / "built"

    def run(metric: str, first: bool, status: int = 0) -> Any:
        built.unlink(missing_ok=True)
        text = project.det.cwd / "x.yaml"
        text.write_text(
            head + SINGLE.replace("METRIC", metric) + f"check_first: {str(first).lower()}\n"
        )
        return project.det("run", text, "--quiet", status=status, env=project.environ())

    run("val_loss", True)
    assert built.read_text() == "110"
    run("val_loss", False)
    assert built.read_text() == "0"
    assert project.outcome(1).table == [(row[0], *row[1:]) for row in project.outcome(2).table]
    failed = run("accuracy", True, status=2)
    assert built.read_text() == "1"
    assert "searcher.metric is 'accuracy', but the validation returned" in failed.stderr
    (trial,) = project.outcome(3).trials
    assert (trial.batches, trial.runs) == (0, 1)

    corrected = project.det.cwd / "corrected"
    corrected.mkdir()
    corrected.joinpath("model_def.py").write_text(
        textwrap.dedent(MODEL) + textwrap.dedent(CORRECTED)
    )
    refused = project.det("resume", "3", "--code", corrected, status=130, env=project.environ())
    assert (
        '+fakes.Training.validate = lambda self: validate(self) | {"accuracy": 1.0}'
        in refused.stderr
    )
    project.det("resume", "3", "--code", corrected, "--yes", "--quiet", env=project.environ())
    (trial,) = project.outcome(3).trials
    assert (str(trial.state), trial.batches, trial.runs) == ("COMPLETED", 40, 2)


SCRIPT = """
    import os
    from pathlib import Path
    from det_core import core

    with core.init() as context:
        (Path(os.environ["DET_HOME"]) / "trained").touch()
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
            (path / "weight").write_text("0.5")
        context.train.report_validation_metrics(1, {"accuracy": 0.5})
"""


@pytest.mark.process
def test_script_tries_its_storage_first_and_names_a_lost_metric(project: Any) -> None:
    project.det.cwd.joinpath("train.py").write_text(textwrap.dedent(SCRIPT))
    trained = project.det.home / "trained"
    taken = project.det.cwd / "taken"
    taken.touch()
    text = project.det.cwd / "x.yaml"

    def run(more: str, status: int) -> Any:
        trained.unlink(missing_ok=True)
        text.write_text(
            "name: x\nentrypoint: python3 train.py\nmax_restarts: 0\n"
            "searcher: {name: single, metric: error, max_length: 1}\n" + more
        )
        return project.det("run", text, status=status, env=project.environ())

    storage = f"checkpoint_storage: {{type: shared_fs, host_path: {taken}}}\n"
    failed = run(storage, 2)
    assert not trained.exists()
    assert str(taken) in failed.stderr.splitlines()[-1]
    done = run("", 0)
    assert "searcher.metric is 'error', and the first validation" in done.stdout + done.stderr
    assert trained.exists()

"""What a run says of its trials as they end, and of itself at its end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from det_core.config import to_json
from det_driver.cli import main
from det_driver.cli._drive import _say
from det_driver.cli._events import BestCheckpoint, ExperimentFinished
from det_driver.cli._view import view
from det_driver.config import load
from det_driver.driver import ExperimentFailures
from det_driver.store import ExperimentState, Store


def finished(best_trial: int | None, checkpoint: BestCheckpoint) -> ExperimentFinished:
    return ExperimentFinished(
        time=time.time(),
        experiment=1,
        name="digits",
        state="COMPLETED",
        reason=None,
        seconds=1.0,
        trials={"COMPLETED": 2},
        metric="error",
        best_metric=0.25,
        best_trial=best_trial,
        best_hparams={},
        importances={},
        trial_class=True,
        checkpoint=checkpoint,
    )


def stopped(state: str) -> SimpleNamespace:
    """Return the row of a trial that stops after batch 20."""
    return SimpleNamespace(
        id=7,
        hparams={},
        state=state,
        best_metric=0.25,
        best_batches=20,
        progress=0.5,
        batches=20,
    )


def test_trial_stopped_by_its_code_is_reported_as_stopped_early(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = view({}, (), quiet=False, as_json=False)
    trial = stopped("COMPLETED")
    run = SimpleNamespace(number=1, reason=None)
    experiment = SimpleNamespace(search=lambda: SimpleNamespace(progress=0.5))
    lines.det_run_finished(experiment, trial, run, "user_stopped")
    lines.det_run_finished(experiment, trial, run, "completed")
    assert (
        capsys.readouterr().out == "trial 7 stopped early, as its code asked\ntrial 7 completed\n"
    )


def test_report_of_a_stopped_trial_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A trial that ends reports its last validation again."""
    lines = view({}, (), quiet=False, as_json=False)
    trial = stopped("RUNNING")
    searcher = SimpleNamespace(name="single", metric="error", smaller_is_better=True, max_trials=1)
    experiment = SimpleNamespace(
        id=1,
        name="x",
        config=SimpleNamespace(hyperparameters={}, searcher=searcher),
        search=lambda: SimpleNamespace(progress=0.5),
        trial=lambda id: trial,
    )
    lines.det_experiment_started(experiment)
    lines.det_run_started(experiment, trial, SimpleNamespace(number=1, first_batch=0))
    for group, batches in (
        ("training", 20),
        ("validation", 20),
        ("training", 20),
        ("validation", 20),
    ):
        lines.det_metrics_reported(experiment, trial.id, group, batches, {"error": 0.25})
    printed = capsys.readouterr().out
    assert [printed.count(f"batch 20 {group}") for group in ("training", "validation")] == [1, 1]


def test_best_checkpoint_line_names_a_trial_other_than_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved = BestCheckpoint(uuid="u", path="/c/u", batches=40, trial=46, metric=0.5, loader="")
    for best in (46, 7):
        _say(finished(best, saved), ExperimentFailures())
    same, other = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith("best checkpoint")
    )
    assert (same, other) == (
        "best checkpoint: /c/u (batch 40)",
        "best checkpoint: /c/u (trial 46, batch 40)",
    )


def test_experiments_are_compared_in_the_words_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No row comes twice, and no value is written as Python writes it."""
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    with Store(tmp_path) as store:
        for number in range(2):
            config = {
                "name": "digits",
                "entrypoint": "model_def:T",
                "labels": [["paper", "b"], ["c"]][number],
                "hyperparameters": {"augment": number == 0, "lr": 0.1},
                "searcher": {"name": "single", "metric": "error", "max_length": {"batches": 8}},
                "reproducibility": {"experiment_seed": 1},
            }
            (tmp_path / "c.yaml").write_text(json.dumps(config))
            row = store.experiments.create(
                name="digits",
                config=to_json(load(tmp_path / "c.yaml").config),
                metric="error",
                labels=config["labels"],
            )
            with store.lock(row.id):
                store.experiments.update(
                    row.id, state=ExperimentState.COMPLETED, started=1.0, ended=2.0
                )
    with pytest.raises(SystemExit):
        main(["compare", "1", "2"])
    rows = [line.partition("  ") for line in capsys.readouterr().out.splitlines()[1:]]
    found = {name: rest.split() for name, _, rest in rows}
    assert len(found) == len(rows)
    assert found["hyperparameters.augment"] == ["true", "false"]
    assert found["labels"] == ["paper,", "b", "c"]
    assert set(found) - {
        "name",
        "state",
        "trials",
        "metric",
        "best",
        "best trial",
        "at batch",
        "with",
        "took",
    } == {"labels", "hyperparameters.augment"}

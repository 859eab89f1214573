"""Hugging Face's Trainer under `det run`."""

from __future__ import annotations

import signal
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SCRIPT = """
import os
import signal
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from det_core import core
from det_torch.transformers import DetCallback


class Digits(torch.utils.data.Dataset):
    def __init__(self, part):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images[part] / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels[part])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixels": self.images[index], "labels": self.labels[index]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))

    def forward(self, pixels, labels=None):
        logits = self.layers(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        if state.global_step == int(os.environ.get("STRUCK_AT", "0")) and context.info.latest_checkpoint is None:
            os.kill(os.getpid(), signal.SIGTERM)


def accuracy(evaluated):
    return {"accuracy": float((evaluated.predictions.argmax(-1) == evaluated.label_ids).mean())}


with core.init() as context:
    args = TrainingArguments(
        output_dir=os.path.join(os.environ["DET_TENSORBOARD_DIR"], "..", "hf"),
        max_steps=60, per_device_train_batch_size=32, learning_rate=context.info.trial.hparams["lr"],
        logging_steps=10, eval_strategy="steps", eval_steps=20, save_steps=20, seed=3, use_cpu=True,
        report_to=[], disable_tqdm=True, remove_unused_columns=False, label_names=["labels"],
    )
    callback = DetCallback(context, args, user_data={"note": "mine"})
    torch.manual_seed(3)
    trainer = Trainer(
        model=Model(), args=args, train_dataset=Digits(slice(0, 1200)), eval_dataset=Digits(slice(1200, None)),
        compute_metrics=accuracy, callbacks=[callback, Slow()],
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
CONFIG = """
name: hf
entrypoint: python3 train.py
hyperparameters: {lr: 0.01}
searcher: {name: single, metric: eval_accuracy, smaller_is_better: false}
max_restarts: 0
"""


@pytest.fixture
def project(det: Any) -> Any:
    det.cwd.joinpath("train.py").write_text(SCRIPT)
    det.cwd.joinpath("const.yaml").write_text(CONFIG)
    return det


def rows(det: Any, experiment: int) -> list[tuple[Any, ...]]:
    return [
        (r["group"], r["batches"], r.get("loss", r.get("eval_accuracy")))
        for r in det.metrics(experiment)
    ]


@pytest.mark.timeout(300)
def test_a_trainer_reports_saves_pauses_and_goes_on_exactly(project: Any, wait_until: Any) -> None:
    det = project
    det("run", "const.yaml")
    whole = rows(det, 1)
    assert [batches for group, batches, _ in whole if group == "training"] == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]
    assert [batches for group, batches, _ in whole if group == "validation"] == [20, 40, 60]
    assert whole[-1][2] > 0.5
    saved = det.json("checkpoint", "list", "1")
    assert all(
        c["metadata"]["note"] == "mine" for c in (saved if isinstance(saved, list) else [saved])
    )
    driver = det.start("run", "const.yaml", env={"PAUSE": "0.1"})
    wait_until(
        lambda: (
            any(batches >= 20 for _, batches, _ in rows(det, 2))
            if len(det.json("list")) == 2
            else False
        ),
        "20 steps",
        90,
    )
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=60)
    assert det.json("show", "2")["experiment"]["state"] == "PAUSED"
    det("resume", "2")
    resumed = rows(det, 2)
    assert [row[:2] for row in resumed] == [row[:2] for row in whole]
    # The Trainer forgets the losses since its last report when it resumes; what comes later is
    # equal.
    assert [row for row in resumed if row[1] >= 40] == [row for row in whole if row[1] >= 40]


@pytest.mark.timeout(300)
def test_preemption_and_wrong_metric_behave_as_in_a_trial_class(project: Any) -> None:
    """SIGTERM strikes its first run.

    The metric's name is the user's mistake, as it ranks no trial.
    """
    search = CONFIG.replace(
        "name: single, metric: eval_accuracy", "name: random, max_trials: 1, metric: eval_acuracy"
    )
    project.cwd.joinpath("const.yaml").write_text(search)
    done = project("run", "const.yaml", "--quiet", status=2, env={"STRUCK_AT": "25"})
    (trial,) = project.json("show", "1", "--runs")["trials"]
    assert [run["outcome"] for run in trial["attempts"]] == ["preempted", "completed"]
    assert trial["restarts"] == 0
    assert [run["first_batch"] for run in trial["attempts"]] == [0, 26]
    said = "no trial has a usable 'eval_acuracy' (searcher.metric): validations reported"
    assert done.stderr.splitlines()[-1].startswith(f"det: {said}")
    assert done.stderr.endswith("; did you mean 'eval_accuracy'?\n")


def test_steps_of_a_second_training_count_on(project: Any) -> None:
    (project.cwd / "train.py").write_text(
        SCRIPT.replace("max_steps=60", "max_steps=20")
        .replace("with core.init() as", "def train(")
        .replace("def train( context:", "def train(context):")
        + "\nwith core.init() as made:\n    train(made)\n    train(made)\n"
    )
    project("run", "const.yaml", "-q")
    assert [row[:2] for row in rows(project, 1)] == [
        ("training", 10),
        ("training", 20),
        ("validation", 20),
        ("training", 30),
        ("training", 40),
        ("validation", 40),
    ]
    marks = [each["batches"] for each in project.json("checkpoint", "list", "1")]
    assert sorted(marks)[-1] == 40


def test_outside_of_det_run_it_says_so() -> None:
    from transformers import TrainingArguments

    from det_core import TrialError, core
    from det_torch.transformers import DetCallback

    with core.init() as context, pytest.raises(TrialError, match="start the script with det run"):
        DetCallback(context, TrainingArguments(use_cpu=True, report_to=[]))


@pytest.mark.process
@pytest.mark.timeout(300)
def test_resumed_trainer_finds_the_best_weights_on_another_disk(det: Any) -> None:
    """Which were saved before the checkpoint that it was resumed from.

    The first ones, as the largest loss is the best here.
    """
    best = """load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=True, report_to=[],"""
    script = SCRIPT.replace("report_to=[],", best).replace(
        "with core.init()", LOST + "with core.init()"
    )
    (det.cwd / "train.py").write_text(script + ENDED)
    (det.cwd / "const.yaml").write_text(CONFIG.replace("max_restarts: 0", "max_restarts: 1"))
    det("run", "const.yaml", "-q", env={"KILLED_AT": "50"})
    assert det.json("show", "1")["trials"][0]["restarts"] == 1
    assert "ends with the weights of checkpoint-20: True" in det("logs", "1").stdout


LOST = """
import shutil
from pathlib import Path

from safetensors.torch import load_file

shutil.rmtree(Path(os.environ["DET_TENSORBOARD_DIR"], "..", "hf"), ignore_errors=True)


class Killed(Slow):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == int(os.environ["KILLED_AT"]) and context.info.latest_checkpoint is None:
            os.kill(os.getpid(), signal.SIGKILL)


Slow = Killed
"""
ENDED = """
    best = Path(trainer.state.best_model_checkpoint)
    saved, found = load_file(best / "model.safetensors"), trainer.model.state_dict()
    print(f"ends with the weights of {best.name}: {all(torch.equal(saved[n], found[n]) for n in saved)}")
"""

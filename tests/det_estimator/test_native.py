"""A script that is its own experiment: what det takes over, and what does not run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "native_estimator" / "train.py"
BEHIND = '\nprint("behind the training")\n'


@pytest.fixture
def run(det):
    """Runs the example's script with fewer trials.

    It says so where it goes on behind its training.
    """
    text = EXAMPLE.read_text().replace('"max_trials": 4', '"max_trials": 2')
    (det.cwd / "train.py").write_text(text + BEHIND)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "train.py", *arguments]
        return subprocess.run(
            argv,
            cwd=det.cwd,
            env=det.env(None),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    return run


@pytest.mark.thorough
def test_here_and_now_the_script_trains_and_goes_on(run, det) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert "training Script here for 16 epochs: global_batch_size=30" in done.stdout
    assert re.search(r"^accuracy [01]\.\d\d$", done.stdout, re.MULTILINE)
    assert done.stdout.rstrip().endswith("behind the training")
    assert len(list((det.home / "checkpoints").iterdir())) == 1


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_script_runs_as_a_search_and_nothing_after_it_runs(run, det) -> None:
    """Neither in the process that submits it, which ends with the experiment, nor in a worker."""
    done = run("cluster")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "is submitted; its workers run train.py again, and nothing that follows runs here"
        in done.stdout
    )
    assert "behind the training" not in done.stdout
    trials = det.json("show", "1")["trials"]
    assert len(trials) == 2
    assert {trial["state"] for trial in trials} == {"COMPLETED"}
    logs = det("logs", "1").stdout
    assert logs.count("train.py has handed over Script; what follows in it does not run") == 2
    assert "behind the training" not in logs


def script(det, body: str) -> subprocess.CompletedProcess[str]:
    (det.cwd / "train.py").write_text(body)
    return subprocess.run(
        [sys.executable, "train.py"],
        cwd=det.cwd,
        env=det.env(None),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


LINE = """
import tensorflow as tf
import det_estimator
from det_driver.native import Mode

searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 3}}
context = det_estimator.init(config={"searcher": searcher}, mode=Mode.LOCAL)


def model(features, mode):
    loss = tf.reduce_mean((features * tf.compat.v1.get_variable("w", initializer=tf.zeros([])) - 1) ** 2)
    optimizer = context.wrap_optimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    step = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def data():
    return context.wrap_dataset(tf.data.Dataset.from_tensor_slices([1.0, 1.0])).batch(1)


specs = tf.estimator.TrainSpec(data), tf.estimator.EvalSpec(data, steps=None)
"""


def test_the_contexts_own_function_returns_what_came_of_it(det) -> None:
    """A custom model, whose optimizer is wrapped in the graph."""
    body = """
result = context.train_and_evaluate(tf.estimator.Estimator(model), *specs)
print(f"{result.validation['loss']:.4f}", [group for group, _, _ in result.reports], len(result.checkpoints))
"""
    done = script(det, LINE + body)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{0.8**6:.4f} ['training', 'validation'] 1"


def test_an_optimizer_that_cannot_wait_is_named(det) -> None:
    done = script(det, LINE + "context.wrap_optimizer(tf.keras.optimizers.legacy.Adam())\n")
    assert (
        "wrap_optimizer got Adam before training has begun; give an optimizer of tf.compat.v1.train"
        in done.stderr
    )


CLASS = """
import numpy as np
import tensorflow as tf
from det_driver.native import Categorical, create
from det_estimator import EstimatorTrial


class Native(EstimatorTrial):
    def build_estimator(self):
        return tf.estimator.Estimator(self.model)

    def model(self, features, labels, mode):
        weight = tf.compat.v1.get_variable("weight", [], initializer=tf.compat.v1.zeros_initializer())
        loss = tf.reduce_mean((labels - weight * features) ** 2)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(self.context.get_hparam("lr"))
        train = self.context.wrap_optimizer(optimizer).minimize(loss, tf.compat.v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def build_train_spec(self):
        return tf.estimator.TrainSpec(self.data)

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(self.data, steps=None)

    def data(self):
        x = np.linspace(-1, 1, 32, dtype="float32")
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, 2 * x))).batch(8)


searcher = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 8}}
hparams = {"lr": Categorical([0.05, 0.1]), "global_batch_size": 8}
create(Native, {"searcher": searcher, "hyperparameters": hparams}, context_dir=".")
print("reached by", __name__)
"""


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_search_over_a_trial_class_that_its_script_hands_over(det) -> None:
    done = script(det, CLASS)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = det("logs", "1").stdout
    assert {trial["state"] for trial in det.json("show", "1")["trials"]} == {"COMPLETED"}
    assert logs.count("train.py has handed over Native") == 2
    assert "reached by" not in done.stdout + done.stderr + logs

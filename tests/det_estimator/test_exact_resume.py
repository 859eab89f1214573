"""A run that is paused, killed and resumed gives the numbers of one that was not, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

EXAMPLES = Path(__file__).parents[2] / "examples"

SLOW = """
import os
import time

import tensorflow as tf

from model_def import DigitsTrial


class Slow(tf.estimator.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(float(os.environ.get("PAUSE", "0")))


class SlowTrial(DigitsTrial):
    def build_train_spec(self):
        return super().build_train_spec()._replace(hooks=[Slow()])
"""

CONFIG = """
name: exact
entrypoint: slow:SlowTrial
hyperparameters: {global_batch_size: 32, hidden: 32, lr: 0.01, momentum: 0.9, dropout: 0.3}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 300}}
min_validation_period: {batches: 30}
min_checkpoint_period: {batches: 20}
scheduling_unit: 10
max_restarts: 1000
reproducibility: {experiment_seed: 3}
checkpoint_storage: {type: shared_fs, host_path: STORAGE, save_trial_latest: 1, save_trial_best: 1}
"""


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--kills")) // 2 + 1  # for each example


@pytest.fixture(
    params=["digits_tf_layers", pytest.param("digits_estimator", marks=pytest.mark.thorough)]
)
def project(det, request):
    """Dense layers with momentum and a schedule, or convolutions with Adam.

    The latter have batch normalization. Both drop out and shuffle.
    """
    shutil.copy(EXAMPLES / request.param / "model_def.py", det.cwd / "model_def.py")
    (det.cwd / "slow.py").write_text(SLOW)
    (det.cwd / "const.yaml").write_text(CONFIG.replace("STORAGE", str(det.home / "checkpoints")))
    return det


def final_state(det, experiment: int) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the variables of the last checkpoint, as bytes, and what else it holds."""
    listed = det.json("checkpoint", "list", str(experiment))
    newest = max(listed, key=lambda c: c["batches"])
    assert newest["batches"] == 300
    path = det.home / "checkpoints" / newest["uuid"]
    reader = tf.train.load_checkpoint(str(path))
    variables = {
        name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()
    }
    return variables, json.loads((path / "det_estimator.json").read_text())


def history(det, experiment: int) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "trial"} for row in det.metrics(experiment)]


def assert_same_trial(det, killed: int, whole: int) -> None:
    assert history(det, killed) == history(det, whole)
    assert final_state(det, killed) == final_state(det, whole)


def worker_of(det) -> int | None:
    """Return the process that trains experiment 2, where there is one.

    What its newest run noted, while it is alive.
    """
    notes = sorted(
        det.home.glob("experiments/2/trials/*/run-*/process.json"),
        key=lambda note: note.stat().st_mtime_ns,
    )
    try:
        pid = int(json.loads(notes[-1].read_text())["pid"]) if notes else 0
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return pid if state != "Z" else None


def trained(det) -> int:
    """Return how many runs of experiment 2 have got as far as a report or a checkpoint."""
    return len(det.metrics(2)) if len(det.json("list")) == 2 else 0


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_pauses_and_random_kills_of_workers_change_nothing(project, kills, wait_until):
    det, rng = project, random.Random(1)
    det("run", "const.yaml", "-q")
    driver = det.start("run", "const.yaml", "-q", env={"PAUSE": "0.03"})
    wait_until(lambda: trained(det) > 4, "some training", 300)
    driver.send_signal(signal.SIGTERM)
    try:
        assert driver.wait(timeout=200) == 130
    except subprocess.TimeoutExpired:
        driver.kill()
        raise
    driver = det.start("resume", "2", "-q", env={"PAUSE": "0.05"})
    done = 0
    while done < kills and driver.poll() is None:
        wait_until(lambda: worker_of(det) is not None or driver.poll() is not None, "a worker", 60)
        time.sleep(
            rng.uniform(0.0, 10.0)
        )  # importing TensorFlow and building the graph take the first seconds
        pid = worker_of(det)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            done += 1
            wait_until(lambda pid=pid: worker_of(det) != pid, "the end of the worker")
    assert driver.wait(timeout=600) == 0
    assert done == kills
    [trial] = det.json("show", "2")["trials"]
    assert (trial["runs"], trial["restarts"]) == (2 + kills, kills)
    assert_same_trial(det, killed=2, whole=1)

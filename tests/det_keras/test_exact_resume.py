"""A run that is killed and resumed gives the numbers of one that was not, bit for bit.

That holds for each kind of data.
"""

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

import numpy as np
import pytest

from det_keras.state import read_state
from det_keras.versions import KERAS_3, keras

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_keras"

SLOW = """
import os
import time

from det_keras.versions import keras
from model_def import DigitsTrial

PAUSE = float(os.environ.get("PAUSE", "0"))


class Pause(keras.callbacks.Callback):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_train_batch_end(self, batch, logs=None):  # once for each execution
        time.sleep(self.seconds)


class SlowTrial(DigitsTrial):
    def keras_callbacks(self):
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.95)
        pause = Pause(PAUSE * self.context.get_hparam("steps_per_execution"))
        return [*super().keras_callbacks(), schedule, pause]
"""

CONFIG = """
name: exact
entrypoint: slow:SlowTrial
hyperparameters:
  {global_batch_size: 32, hidden: 32, lr: 0.05, momentum: 0.9, dropout: 0.3, data: DATA, steps_per_execution: STEPS}
searcher: {name: single, metric: val_accuracy, smaller_is_better: false, max_length: {batches: LENGTH}}
min_validation_period: {batches: 30}
min_checkpoint_period: {batches: 20}
scheduling_unit: 10
max_restarts: 1000
reproducibility: {experiment_seed: 3}
checkpoint_storage: {type: shared_fs, host_path: STORAGE, save_trial_latest: 1, save_trial_best: 1}
"""
KINDS = [("weighted", 4)]
if KERAS_3:  # what reads data is the same for both
    KINDS += [("tf.data", 1), ("arrays", 1), ("sequence", 1), ("adapter", 1)]


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    return max(1, int(request.config.getoption("--kills")) // 3)  # for each kind of data


@pytest.fixture
def length(kills: int) -> int:
    return max(120, 40 * kills)  # batches, so that all of the kills find it training


@pytest.fixture(params=KINDS, ids=lambda kind: kind[0])
def project(det: Any, request: pytest.FixtureRequest, length: int) -> Any:
    kind, steps = request.param
    shutil.copy(EXAMPLE / "model_def.py", det.cwd / "model_def.py")
    (det.cwd / "slow.py").write_text(SLOW)
    values = {"DATA": kind, "STEPS": steps, "LENGTH": length, "STORAGE": det.home / "checkpoints"}
    config = CONFIG
    for name, value in values.items():
        config = config.replace(name, str(value))
    (det.cwd / "const.yaml").write_text(config)
    return det


def final_state(det: Any, experiment: int, length: int) -> dict[str, Any]:
    newest = max(det.json("checkpoint", "list", str(experiment)), key=lambda c: c["batches"])
    assert newest["batches"] == length
    directory = det.home / "checkpoints" / newest["uuid"]
    return {"state": read_state(directory), "weights": weights(directory / "model.keras")}


def weights(file: Path) -> list[Any]:
    return keras.models.load_model(str(file), compile=False).get_weights()


def history(det: Any, experiment: int) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "trial"} for row in det.metrics(experiment)]


def assert_equal(one: Any, other: Any, place: str = "state") -> None:
    """Compare two states, arrays bit for bit."""
    if isinstance(one, np.ndarray):
        assert np.array_equal(one, other), place
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            assert_equal(one[key], other[key], f"{place}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{place}[{index}]")
    else:
        assert one == other, place


def worker_of(det: Any) -> int | None:
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


def is_over(driver: subprocess.Popen[str]) -> bool:
    return driver.poll() is not None


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_killing_the_worker_at_random_moments_changes_nothing(
    project: Any, kills: int, length: int, wait_until: Any
) -> None:
    det, rng = project, random.Random(1)
    det("run", "const.yaml", "-q")
    driver = det.start("run", "const.yaml", "-q", env={"PAUSE": "0.06"})
    begun, done = det.home / "experiments" / "2" / "experiment.db", 0
    wait_until(
        lambda: (begun.exists() and det.metrics(2)) or is_over(driver), "some training", 300
    )  # for the first
    while done < kills and not is_over(driver):
        wait_until(lambda: worker_of(det) is not None or is_over(driver), "a worker", 100)
        time.sleep(
            rng.uniform(0.0, 9.0 if done else 3.0)
        )  # importing TensorFlow takes the first half
        pid = worker_of(det)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            done += 1
            wait_until(lambda pid=pid: worker_of(det) != pid, "the end of the worker")
    assert driver.wait(timeout=300) == 0
    assert done == kills
    assert det.json("show", "2")["trials"][0]["restarts"] == kills
    assert history(det, 2) == history(det, 1)
    assert_equal(final_state(det, 2, length), final_state(det, 1, length))

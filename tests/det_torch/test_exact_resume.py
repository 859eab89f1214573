"""A run that is killed and resumed gives the numbers of one that was left alone, bit for bit."""

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
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_torch"

SLOW = """
import os
import time

from model_def import DigitsTrial


class SlowTrial(DigitsTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().train_batch(batch, epoch_idx, batch_idx)
"""

CONFIG = """
name: exact
entrypoint: slow:SlowTrial
hyperparameters: {global_batch_size: 32, hidden: 32, lr: 0.05, momentum: 0.9, dropout: 0.3, workers: 2, augment: true}
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
    return int(request.config.getoption("--kills"))


@pytest.fixture
def project(det):
    """The digits, augmented in the loader's workers."""
    shutil.copy(EXAMPLE / "model_def.py", det.cwd / "model_def.py")
    (det.cwd / "slow.py").write_text(SLOW)
    (det.cwd / "const.yaml").write_text(CONFIG.replace("STORAGE", str(det.home / "checkpoints")))
    return det


def final_state(det, experiment: int) -> dict[str, Any]:
    listed = det.json("checkpoint", "list", str(experiment))
    newest = max(listed, key=lambda c: c["batches"])
    assert newest["batches"] == 300
    return torch.load(
        det.home / "checkpoints" / newest["uuid"] / "state_dict.pth", weights_only=True
    )


def history(det, experiment: int) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "trial"} for row in det.metrics(experiment)]


def assert_equal(one: Any, other: Any, place: str = "state") -> None:
    """Compare two states, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), place
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


def assert_same_trial(det, killed: int, whole: int) -> None:
    assert history(det, killed) == history(det, whole)
    assert_equal(final_state(det, killed), final_state(det, whole))


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


def is_over(driver: subprocess.Popen[str]) -> bool:
    return driver.poll() is not None


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)
def test_killing_the_worker_at_random_moments_changes_nothing(project, kills, wait_until):
    det, rng = project, random.Random(1)
    det("run", "const.yaml", "-q")
    driver = det.start("run", "const.yaml", "-q", env={"PAUSE": "0.03"})
    done = 0
    while done < kills and not is_over(driver):
        wait_until(lambda: worker_of(det) is not None or is_over(driver), "a worker")
        time.sleep(rng.uniform(0.0, 5.0))
        pid = worker_of(det)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            done += 1
            wait_until(lambda pid=pid: worker_of(det) != pid, "the end of the worker")
    assert driver.wait(timeout=300) == 0
    assert done == kills
    assert det.json("show", "2")["trials"][0]["restarts"] == kills
    assert_same_trial(det, killed=2, whole=1)


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)
def test_killing_the_driver_at_random_moments_changes_nothing(project, kills):
    det, rng = project, random.Random(2)
    det("run", "const.yaml", "-q")
    driver = det.start("run", "const.yaml", "-q", env={"PAUSE": "0.03"})
    done = 0
    while True:
        try:
            assert driver.wait(timeout=rng.uniform(1.0, 6.0) if done < kills else 300) == 0
            break
        except subprocess.TimeoutExpired:
            os.kill(driver.pid, signal.SIGKILL)
            driver.wait()
            done += 1
            driver = det.start("resume", "2", "-q", env={"PAUSE": "0.03"})
    assert done == kills
    assert_same_trial(det, killed=2, whole=1)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_pausing_at_any_batch_and_resuming_changes_nothing(project, wait_until):
    det = project
    det("run", "const.yaml", "-q")
    driver = det.start("run", "const.yaml", "-q", env={"PAUSE": "0.03"})
    wait_until(lambda: len(det.json("list")) == 2 and len(det.metrics(2)) > 4, "some training", 60)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(timeout=60) == 130
    det("resume", "2", "-q")
    assert det.json("show", "2")["trials"][0]["runs"] == 2
    assert_same_trial(det, killed=2, whole=1)

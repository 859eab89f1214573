"""A run of the example that is killed at random gives the numbers of one that was not."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_lightning"

SLOW = """
import os
import time

import lightning.pytorch as pl

from model_def import DigitsTrial


class Slow(pl.Callback):
    def on_train_batch_start(self, *args):
        time.sleep(float(os.environ.get("PAUSE", "0")))


class SlowTrial(DigitsTrial):
    def build_callbacks(self):
        return [Slow()]
"""

CONFIG = """
name: exact
entrypoint: slow:SlowTrial
hyperparameters: {global_batch_size: 32, hidden: 32, lr: 0.1, momentum: 0.9, dropout: 0.3, workers: 1, augment: true}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 120}}
optimizations: {aggregation_frequency: 2}
min_validation_period: {batches: 30}
min_checkpoint_period: {batches: 15}
scheduling_unit: 10
max_restarts: 1000
reproducibility: {experiment_seed: 3}
checkpoint_storage: {type: shared_fs, host_path: STORAGE, save_trial_latest: 1, save_trial_best: 1}
"""


@pytest.fixture
def project(det: Any) -> Any:
    shutil.copy(EXAMPLE / "model_def.py", det.cwd / "model_def.py")
    (det.cwd / "slow.py").write_text(SLOW)
    (det.cwd / "const.yaml").write_text(CONFIG.replace("STORAGE", str(det.home / "checkpoints")))
    return det


def final_state(det: Any, experiment: int) -> str:
    newest = max(det.json("checkpoint", "list", str(experiment)), key=lambda c: c["batches"])
    assert newest["batches"] == 120
    torch.set_printoptions(profile="full", precision=10)
    try:
        return str(
            torch.load(
                det.home / "checkpoints" / newest["uuid"] / "lightning.ckpt", weights_only=True
            )
        )
    finally:
        torch.set_printoptions(profile="default")


def history(det: Any, experiment: int) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "trial"} for row in det.metrics(experiment)]


def worker_of(det: Any) -> int | None:
    """Return the process that trains experiment 2, where there is one."""
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


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_killing_the_worker_at_random_moments_changes_nothing(
    project: Any, request: Any, wait_until: Any
) -> None:
    det, rng, kills = project, random.Random(1), int(request.config.getoption("--kills"))
    det("run", "const.yaml", "-q")
    driver = det.start("run", "const.yaml", "-q", env={"PAUSE": "0.05"})
    done = 0
    while done < kills and driver.poll() is None:
        wait_until(lambda: worker_of(det) is not None or driver.poll() is not None, "a worker")
        time.sleep(rng.uniform(0.0, 6.0))
        pid = worker_of(det)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            done += 1
            wait_until(lambda pid=pid: worker_of(det) != pid, "the end of the worker")
    assert driver.wait(timeout=600) == 0
    assert done == kills
    assert det.json("show", "2")["trials"][0]["restarts"] == kills
    assert history(det, 2) == history(det, 1)
    assert final_state(det, 2) == final_state(det, 1)

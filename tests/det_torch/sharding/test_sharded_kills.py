"""A run whose model is divided among two ranks, killed and resumed.

Its numbers are those of one that was left alone.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from det_node.process import is_running, noted_processes
from det_torch import state

SLOW = """
import os
import time

from sharded_trials import RowsTrial


class SlowTrial(RowsTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
CONFIG = """
name: divided
entrypoint: slow:SlowTrial
hyperparameters: {global_batch_size: 32, dropout: 0.2, clip: 0.5}
searcher: {name: single, metric: val_loss, max_length: {batches: 120}}
resources: {slots_per_trial: 2}
optimizations: {sharding: fsdp}
min_validation_period: {batches: 60}
min_checkpoint_period: {batches: 10}
scheduling_unit: 10
max_restarts: 1000
reproducibility: {experiment_seed: 3}
checkpoint_storage: {type: shared_fs, host_path: STORAGE, save_trial_latest: 1, save_trial_best: 0}
"""


def ranks_of(det: Any) -> list[tuple[int, str]]:
    """The processes of experiment 2's newest run, by rank; none unless both are there."""
    runs = sorted(
        det.home.glob("experiments/2/trials/*/run-*"),
        key=lambda d: int(d.name.removeprefix("run-")),
    )
    noted = noted_processes(runs[-1]) if runs else []
    return noted if len(noted) == 2 and all(is_running(*process) for process in noted) else []


def tensors(contents: Any) -> list[torch.Tensor]:
    if isinstance(contents, torch.Tensor):
        return [contents]
    inner = contents.values() if isinstance(contents, dict) else contents
    return [
        t
        for each in inner
        if isinstance(each, (dict, list, tuple, torch.Tensor))
        for t in tensors(each)
    ]


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_killing_either_rank_changes_nothing(
    det: Any,
    wait_until: Callable[..., None],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DET_SLOTS_TOTAL", "2")
    rng, kills = random.Random(4), int(request.config.getoption("--kills"))
    shutil.copy(Path(__file__).with_name("sharded_trials.py"), det.cwd)
    (det.cwd / "slow.py").write_text(SLOW)
    (det.cwd / "const.yaml").write_text(CONFIG.replace("STORAGE", str(det.home / "checkpoints")))
    det("run", "const.yaml", "-q")
    driver: subprocess.Popen[str] = det.start("run", "const.yaml", "-q", env={"PAUSE": "0.05"})
    done = 0
    while done < kills and driver.poll() is None:
        wait_until(lambda: bool(ranks_of(det)) or driver.poll() is not None, "two ranks", 60)
        time.sleep(rng.uniform(0.0, 6.0))
        pair = ranks_of(det)
        if pair:
            os.kill(pair[rng.randrange(2)][0], signal.SIGKILL)
            done += 1
            wait_until(
                lambda p=pair: not any(is_running(*each) for each in p), "the end of both ranks", 20
            )
    assert driver.wait(timeout=300) == 0
    assert done == kills
    assert det.json("show", "2")["trials"][0]["restarts"] == kills
    assert [{k: v for k, v in row.items() if k != "trial"} for row in det.metrics(2)] == [
        {k: v for k, v in row.items() if k != "trial"} for row in det.metrics(1)
    ]
    whole, resumed = (
        state.load(det.home / "checkpoints" / newest(det, number)) for number in (1, 2)
    )
    pairs = zip(tensors(whole), tensors(resumed), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def newest(det: Any, experiment: int) -> str:
    last = max(det.json("checkpoint", "list", str(experiment)), key=lambda c: c["batches"])
    assert last["batches"] == 120
    return str(last["uuid"])

"""A run on two ranks, one of which is killed, gives the numbers of an undisturbed one.

That holds for either backend.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from det_node.process import is_running, noted_processes

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_torch"
LIMIT_SECONDS = 10

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
name: ranks
entrypoint: slow:SlowTrial
hyperparameters: {global_batch_size: 32, hidden: 32, lr: 0.05, momentum: 0.9, dropout: 0.3, workers: 1, augment: true}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 200}}
resources: {slots_per_trial: 2}
distributed: {backend: BACKEND}
min_validation_period: {batches: 50}
min_checkpoint_period: {batches: 20}
scheduling_unit: 10
max_restarts: 1000
reproducibility: {experiment_seed: 3}
checkpoint_storage: {type: shared_fs, host_path: STORAGE, save_trial_latest: 1, save_trial_best: 0}
"""


@pytest.fixture(params=[pytest.param("native", marks=pytest.mark.thorough), "horovod"])
def project(
    det: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """The digits on two ranks; what they leave in the temporary directory is seen."""
    if request.param == "horovod":
        pytest.importorskip("horovod.torch", reason="run: det horovod install")
    monkeypatch.setenv("DET_SLOTS_TOTAL", "2")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    shutil.copy(EXAMPLE / "model_def.py", det.cwd / "model_def.py")
    (det.cwd / "slow.py").write_text(SLOW)
    config = CONFIG.replace("BACKEND", request.param).replace(
        "STORAGE", str(det.home / "checkpoints")
    )
    (det.cwd / "const.yaml").write_text(config)
    det.scratch = scratch
    return det


def ranks_of(det: Any) -> list[tuple[int, str]]:
    """The processes of experiment 2's newest run, by rank; none unless both are there."""
    runs = sorted(
        det.home.glob("experiments/2/trials/*/run-*"),
        key=lambda d: int(d.name.removeprefix("run-")),
    )
    noted = noted_processes(runs[-1]) if runs else []
    return noted if len(noted) == 2 and all(is_running(*process) for process in noted) else []


def final_weights(det: Any, experiment: int) -> list[dict[str, Any]]:
    newest = max(det.json("checkpoint", "list", str(experiment)), key=lambda c: c["batches"])
    assert newest["batches"] == 200
    path = det.home / "checkpoints" / newest["uuid"] / "state_dict.pth"
    state: list[dict[str, Any]] = torch.load(path, weights_only=True)["models_state_dict"]
    return state


def history(det: Any, experiment: int) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "trial"} for row in det.metrics(experiment)]


def listening(pids: list[int]) -> set[str]:
    """The sockets on which these processes listen, as the kernel lists them."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(fd).removeprefix("socket:[").rstrip("]"))
            except OSError:
                continue
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


def still_open(sockets: set[str]) -> set[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sockets & {row[1] for row in rows if row[3] == "0A"}


@pytest.mark.timeout(3000)
def test_killing_either_rank_at_random_moments_changes_nothing(
    project: Any, wait_until: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    """Within ten seconds no process of the run is left, and no port.

    At the end no temporary file. And the numbers are equal.
    """
    det, rng, kills = project, random.Random(4), int(request.config.getoption("--kills"))
    det("run", "const.yaml", "-q")
    pause = max(0.03, 0.015 * kills)  # so that it does not end before so many
    driver: subprocess.Popen[str] = det.start("run", "const.yaml", "-q", env={"PAUSE": str(pause)})
    done, killed = 0, set()
    while done < kills and driver.poll() is None:
        wait_until(lambda: bool(ranks_of(det)) or driver.poll() is not None, "two ranks", 60)
        time.sleep(rng.uniform(0.0, 8.0))
        pair = ranks_of(det)
        if not pair:
            continue
        sockets = listening([pid for pid, _ in pair])
        victim = rng.randrange(2)
        os.kill(pair[victim][0], signal.SIGKILL)
        killed.add(victim)
        done += 1
        wait_until(
            lambda p=pair: not any(is_running(*each) for each in p),
            "the end of both ranks",
            LIMIT_SECONDS,
        )
        wait_until(
            lambda s=sockets: still_open(s) == set(), "the end of their ports", LIMIT_SECONDS
        )
    assert driver.wait(timeout=300) == 0
    assert done == kills
    assert det.json("show", "2")["trials"][0]["restarts"] == kills
    assert history(det, 2) == history(det, 1)
    whole, resumed = final_weights(det, 1), final_weights(det, 2)
    for one, other in zip(whole, resumed, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    # Torch keeps its cache there, and Python's multiprocessing the folder of a loader whose process
    # was killed.
    assert [
        p.name for p in det.scratch.iterdir() if not p.name.startswith(("torchinductor_", "pymp-"))
    ] == []

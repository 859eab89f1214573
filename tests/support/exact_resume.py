"""A trial that is killed or paused at random moments, and one that is not: one campaign.

The tests of a framework say what is trained and what a checkpoint holds. The workers, or the
driver, of experiment 2 are killed; experiment 1 is never disturbed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from det_node.process import is_running, noted_processes

EXAMPLES = Path(__file__).parents[2] / "examples"

CONFIG = """
name: exact
entrypoint: slow:SlowTrial
hyperparameters: {global_batch_size: 32, hidden: 32, momentum: 0.9, dropout: 0.3, HPARAMS}
searcher: {name: single, metric: METRIC, smaller_is_better: false, max_length: {batches: LENGTH}}
min_validation_period: {batches: 30}
min_checkpoint_period: {batches: 20}
scheduling_unit: 10
max_restarts: 1000
reproducibility: {experiment_seed: 3}
checkpoint_storage: {type: shared_fs, host_path: STORAGE, save_trial_latest: 1, save_trial_best: 1}
"""


def history(det: Any, experiment: int) -> list[dict[str, Any]]:
    """Return what an experiment of one trial has reported."""
    return [{k: v for k, v in row.items() if k != "trial"} for row in det.metrics(experiment)]


def assert_equal(one: Any, other: Any, place: str = "state") -> None:
    """Compare two states, arrays and tensors bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            assert_equal(one[key], other[key], f"{place}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{place}[{index}]")
    elif hasattr(one, "__array__"):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), place
        assert one.tobytes() == other.tobytes(), place
    else:
        assert one == other, place


@dataclass
class Disturbed:
    """The trial that is killed, and what its last checkpoint is read by."""

    det: Any
    wait_until: Callable[..., None]
    read_checkpoint: Callable[[Path], Any]
    """Returns what a checkpoint's directory holds: arrays in dicts, lists and tuples."""
    length: int
    pause: float
    """Seconds between batches, so that it trains long enough. `slow.py` reads it from PAUSE."""

    @classmethod
    def of(
        cls,
        example: str,
        slow: str,
        det: Any,
        wait_until: Callable[..., None],
        read_checkpoint: Callable[[Path], Any],
        *,
        hparams: str,
        length: int = 300,
        pause: float = 0.03,
        metric: str = "accuracy",
        more: str = "",
    ) -> Disturbed:
        """Write an example's trial, slowed down, and train it undisturbed as experiment 1.

        `slow` is the module with `SlowTrial`. `more` are more lines of the configuration.
        """
        shutil.copy(EXAMPLES / example / "model_def.py", det.cwd / "model_def.py")
        (det.cwd / "slow.py").write_text(slow)
        values = {
            "HPARAMS": hparams,
            "METRIC": metric,
            "LENGTH": str(length),
            "STORAGE": str(det.home / "checkpoints"),
        }
        config = CONFIG
        for name, value in values.items():
            config = config.replace(name, value)
        (det.cwd / "const.yaml").write_text(config + more)
        det("run", "const.yaml", "-q")
        return cls(det, wait_until, read_checkpoint, length, pause)

    def start(self, *words: str) -> subprocess.Popen[str]:
        driver: subprocess.Popen[str] = self.det.start(*words, env={"PAUSE": str(self.pause)})
        return driver

    def run(self) -> subprocess.Popen[str]:
        return self.start("run", "const.yaml", "-q")

    def ranks(self) -> list[tuple[int, str]]:
        """Return the processes of experiment 2's newest run, by rank, if all of them run."""
        runs = sorted(
            self.det.home.glob("experiments/2/trials/*/run-*"),
            key=lambda directory: int(directory.name.removeprefix("run-")),
        )
        noted = noted_processes(runs[-1]) if runs else []
        return noted if all(is_running(*process) for process in noted) else []

    def wait_for_training(self, driver: subprocess.Popen[str], reports: int = 4) -> None:
        """Wait until the driver's trial has reported so often."""
        self.wait_until(
            lambda: (
                driver.poll() is not None
                or (len(self.det.json("list")) == 2 and len(self.det.metrics(2)) > reports)
            ),
            "some training",
            300,
        )
        assert driver.poll() is None

    def kill_workers(
        self, driver: subprocess.Popen[str], kills: int, seconds: float = 5.0, seed: int = 1
    ) -> None:
        """Kill the worker so often, each time within so many seconds; wait for the driver's end."""
        rng, done = random.Random(seed), 0
        while done < kills and driver.poll() is None:
            self.wait_until(
                lambda: bool(self.ranks()) or driver.poll() is not None, "a worker", 100
            )
            time.sleep(rng.uniform(0.0, seconds))
            for process in self.ranks()[:1]:
                os.kill(process[0], signal.SIGKILL)
                done += 1
                self.wait_until(lambda p=process: not is_running(*p), "the end of the worker")
        assert driver.wait(timeout=600) == 0
        assert done == kills
        assert self.det.json("show", "2")["trials"][0]["restarts"] == kills

    def kill_drivers(self, kills: int, seed: int = 2) -> None:
        """Kill the driver so often, each time resumed; wait for the end."""
        rng, driver, done = random.Random(seed), self.run(), 0
        while True:
            try:
                assert driver.wait(timeout=rng.uniform(1.0, 6.0) if done < kills else 300) == 0
                break
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()
                done += 1
                driver = self.start("resume", "2", "-q")
        assert done == kills

    def pause_once(self) -> None:
        """Pause it in the midst of training, by SIGTERM to its driver."""
        driver = self.run()
        self.wait_for_training(driver)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=200) == 130

    def equals_the_undisturbed(self) -> None:
        assert history(self.det, 2) == history(self.det, 1)
        assert_equal(self._last(2), self._last(1))

    def _last(self, experiment: int) -> Any:
        listed = self.det.json("checkpoint", "list", str(experiment))
        newest = max(listed, key=lambda checkpoint: checkpoint["batches"])
        assert newest["batches"] == self.length
        return self.read_checkpoint(self.det.home / "checkpoints" / newest["uuid"])

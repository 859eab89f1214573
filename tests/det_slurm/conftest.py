"""Searches on a cluster whose nodes see neither the home, nor the project, nor the user's home.

Only the checkpoint storage.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.conftest import Project, plugin_path, project
from tests.slurm_cluster import Cluster, cluster

__all__ = ["Searches", "plugin_path", "project", "searches", "slurm"]

SEARCH = (
    "searcher: {{name: random, metric: val_loss, max_trials: {trials}, max_length: {length},"
    " max_concurrent_trials: 2}}\nmin_validation_period: 13\nmin_checkpoint_period: 10\n"
)


class Searches:
    """Searches with the driver on the controller's host; `shared` is what the nodes see."""

    def __init__(
        self, project: Project, cluster: Any, tmp_path: Path, wait_until: Callable[..., None]
    ) -> None:
        self.project, self.cluster, self.wait_until = project, cluster, wait_until
        self.shared, self.user = tmp_path / "shared", tmp_path / "user"
        (self.shared / "storage").mkdir(parents=True)

    def start(self, *words: str | Path, lease: float = 8.0) -> subprocess.Popen[str]:
        det = self.project.det
        local = det.argv
        det.argv = lambda words: self.cluster.argv(local(words))
        env = {**self.cluster.environ, "HOME": str(self.user), "DET_LEASE": str(lease)}
        try:
            return det.start(*words, env=self.project.environ(1, env))
        finally:
            det.argv = local

    def run(
        self,
        *words: str,
        lease: float = 8.0,
        trials: int = 2,
        length: int = 40,
        pause: float = 0.1,
        **engine: Any,
    ) -> subprocess.Popen[str]:
        """Start a search of trials that note each batch, each in a job with a node of its own."""
        return self.run_text(self._text(trials, length), *words, lease=lease, pause=pause, **engine)

    def run_text(
        self, text: str, *words: str, lease: float = 8.0, pause: float = 0.1, **engine: Any
    ) -> subprocess.Popen[str]:
        """Start what a text says, on the cluster."""
        text += f"engine: {self.engine(pause, **engine)}\n"
        return self.start("run", self.project.write(text), *words, lease=lease)

    def engine(self, pause: float = 0.0, **settings: Any) -> dict[str, Any]:
        """Return what a configuration says of the engine."""
        lines = [
            f"export DET_HOME={self.shared} PAUSE={pause}"
            f" PYTHONPATH={self.project.env['PYTHONPATH']}"
        ]
        return {"name": "slurm", "setup": lines, "sbatch_args": ["--exclusive"], **settings}

    def _text(self, trials: int, length: int) -> str:
        return self.stored(SEARCH.format(trials=trials, length=length))

    def stored(self, text: str) -> str:
        """Return a text that says where checkpoints go, too."""
        return (
            text
            + f"checkpoint_storage: {{type: shared_fs, host_path: {self.shared / 'storage'}}}\n"
        )

    def batches(self) -> dict[int, int]:
        """Return how many batches each worker has begun, by its process."""
        return {
            int(p.name.rpartition("-")[2]): len(p.read_text())
            for p in self.shared.glob("batches-of-*")
        }

    def under_way(self, batches: int = 5) -> dict[int, int]:
        """Return the batches of both trials, when each has begun so many."""
        self.wait_until(
            lambda: sum(n > batches for n in self.batches().values()) >= 2,
            "batches of both trials",
            90,
        )
        return self.batches()

    def undisturbed(self, trials: int = 2, length: int = 40) -> Any:
        """Return what the search finds on this machine."""
        path = self.project.write(self._text(trials, length), "local.yaml")
        self.project.det("run", path, "--quiet", env=self.project.environ(2))
        return self.project.outcome(2).table

    def no_job_is_left(self) -> None:
        """Wait until no job waits or runs; Slurm takes a moment to see that one has ended."""
        states = "pending,running,completing"
        self.wait_until(
            lambda: self.cluster.jobs(states) == {}, f"the end of {self.cluster.jobs(states)}", 15
        )

    def restarts(self) -> list[int]:
        return [trial.restarts for trial in self.project.outcome(1).trials]


def ended(driver: subprocess.Popen[str], status: int = 0, seconds: float = 150.0) -> str:
    """Wait for a driver, and return what it said."""
    said, _ = driver.communicate(timeout=seconds)
    assert driver.returncode == status, said
    return said


@pytest.fixture
def slurm(tmp_path: Path, project: Project) -> Iterator[Cluster]:
    """Three nodes on which the directories of a driver are empty."""
    hidden = [tmp_path / "home", tmp_path / "project", tmp_path / "user"]
    for each in hidden:
        each.mkdir(exist_ok=True)
    with cluster(tmp_path / "cluster", 3, hidden) as made:
        yield made


@pytest.fixture
def searches(
    project: Project, slurm: Cluster, tmp_path: Path, wait_until: Callable[..., None]
) -> Searches:
    return Searches(project, slurm, tmp_path, wait_until)

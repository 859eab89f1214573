"""Searches on clusters whose nodes see only the checkpoint storage.

They see neither the home, nor the project, nor the user's home. One harness for Slurm, Ray and
Kubernetes: an engine's tests import the fixtures of `fixtures_of` from here, and tests of all
engines are marked with `on_each_engine`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.det_driver.driver.conftest import Project
from tests.support.clusters.hosts import Cluster
from tests.support.clusters.kubernetes import (
    IMAGE,
    KubernetesCluster,
    kubernetes_cluster,
    why_no_kubernetes,
)
from tests.support.clusters.ray import RayCluster, ray_cluster, why_no_ray
from tests.support.clusters.slurm import SlurmCluster, slurm_cluster, why_no_slurm

from det_driver.store import Store
from det_testing.fakes import STATE_FILE

SEARCH = (
    "searcher: {{name: random, metric: val_loss, max_trials: {trials}, max_length: {length},"
    " max_concurrent_trials: 2}}\nmin_validation_period: 13\nmin_checkpoint_period: 10\n"
)


SPREAD = """
searcher: {name: single, metric: val_loss, max_length: {batches: 40}}
min_validation_period: 13
min_checkpoint_period: 10
resources: {slots_per_trial: 2}
"""
"""A trial of two ranks."""


class Searches:
    """Searches with the driver on the cluster's first host; `shared` is what the nodes see."""

    name: ClassVar[str]
    """The engine's name."""

    apart: ClassVar[dict[str, Any]] = {}
    """Settings by which each trial has a node to itself, where the harness's others do not."""

    cluster: Any

    def __init__(
        self, project: Project, cluster: Cluster, tmp_path: Path, wait_until: Callable[..., None]
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
        text = self.search(trials, length)
        return self.run_text(text, *words, lease=lease, pause=pause, **engine)

    def run_text(
        self, text: str, *words: str, lease: float = 8.0, pause: float = 0.1, **engine: Any
    ) -> subprocess.Popen[str]:
        """Start what a text says, on the cluster."""
        text += f"engine: {self.engine(pause, **engine)}\n"
        return self.start("run", self.project.write(text), *words, lease=lease)

    def engine(self, pause: float = 0.0, **settings: Any) -> dict[str, Any]:
        """Return what a configuration says of the engine."""
        return {"name": self.name, **self.settings(self.variables(pause)), **settings}

    def settings(self, variables: dict[str, str]) -> dict[str, Any]:
        """Return the engine's settings by which nodes have these variables."""
        raise NotImplementedError

    def variables(self, pause: float) -> dict[str, str]:
        return {
            "DET_HOME": str(self.shared),
            "PAUSE": str(pause),
            "PYTHONPATH": self.project.env["PYTHONPATH"],
        }

    def search(self, trials: int, length: int) -> str:
        return self.stored(SEARCH.format(trials=trials, length=length))

    def stored(self, text: str) -> str:
        """Return a text that says where checkpoints go, too."""
        place = self.shared / "storage"
        return text + f"checkpoint_storage: {{type: shared_fs, host_path: {place}}}\n"

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
        path = self.project.write(self.search(trials, length), "local.yaml")
        self.project.det("run", path, "--quiet", env=self.project.environ(2))
        return self.project.outcome(2).table

    def machines(self) -> list[str]:
        """Return the nodes that agents are on."""
        raise NotImplementedError

    def no_job_is_left(self) -> None:
        """Wait until no job of the cluster waits or runs."""
        raise NotImplementedError

    def restarts(self) -> list[int]:
        return [trial.restarts for trial in self.project.outcome(1).trials]

    def equals_an_undisturbed_one(self, trials: int = 2, length: int = 40) -> None:
        """Compare the metrics and last checkpoints with those of a search on this machine."""
        assert self.project.outcome(1).table == self.undisturbed(trials, length)
        assert self.restarts() == [0] * trials
        assert len(self._last_states(1)) == trials
        assert self._last_states(1) == self._last_states(2)

    def _last_states(self, experiment: int) -> list[str]:
        """Return each trial's weight and random numbers, as its last checkpoint holds them."""
        with Store.reader(self.project.det.home) as store:
            trials = store.trials.list(experiment)
            last = [store.checkpoints.list(trial_id=trial.id)[-1] for trial in trials]
        found = [(self.shared / "storage" / each.uuid).rglob(STATE_FILE) for each in last]
        return [path.read_text() for paths in found for path in paths]


class SlurmSearches(Searches):
    """Searches on Slurm, with the driver on the controller's host."""

    name = "slurm"

    def settings(self, variables: dict[str, str]) -> dict[str, Any]:
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        return {"setup": [f"export {words}"], "sbatch_args": ["--exclusive"]}

    def machines(self) -> list[str]:
        lists = [nodes for _, nodes in self.cluster.jobs("running").values()]
        show = ("scontrol", "show", "hostnames")
        return [node for nodes in lists for node in self.cluster.run(*show, nodes).split()]

    def no_job_is_left(self) -> None:
        """Wait until no job waits or runs; Slurm takes a moment to see that one has ended."""
        states = "pending,running,completing"
        self.wait_until(
            lambda: self.cluster.jobs(states) == {}, f"the end of {self.cluster.jobs(states)}", 15
        )


NO_RAY_JOB_IS_LEFT = """
import time
deadline = time.monotonic() + 30
while any(group["state"] != "REMOVED" for group in ray.util.placement_group_table().values()) or ray.util.list_named_actors():
    assert time.monotonic() < deadline, (ray.util.placement_group_table(), ray.util.list_named_actors())
    time.sleep(0.2)
"""


class RaySearches(Searches):
    """Searches on Ray, with the driver on the head."""

    name = "ray"
    apart: ClassVar[dict[str, Any]] = {"resources": {"other": 600}}  # of 1000

    def settings(self, variables: dict[str, str]) -> dict[str, Any]:
        """Name hosts other than the head."""
        environ = {**variables, "HOME": str(self.user)}
        return {"resources": {"other": 1}, "runtime_env": {"env_vars": environ}}

    def no_job_is_left(self) -> None:
        """Wait until Ray has its machines back."""
        self.cluster.ask(NO_RAY_JOB_IS_LEFT)

    def machines(self) -> list[str]:
        printed = self.cluster.ask(
            "hosts = {node['NodeID']: node['NodeManagerAddress'] for node in ray.nodes()}\ngroups ="
            " ray.util.placement_group_table().values()\nprint(*(hosts[n] for g in groups if"
            " g['state'] == 'CREATED' for n in g['bundles_to_node_id'].values()))"
        )
        return printed.split()


class KubernetesSearches(Searches):
    """Searches on Kubernetes, with the driver on a host that is no node."""

    name = "kubernetes"

    def settings(self, variables: dict[str, str]) -> dict[str, Any]:
        env = [{"name": name, "value": value} for name, value in variables.items()]
        pod = {"spec": {"containers": [{"name": "determined-container", "env": env}]}}
        return {"image": IMAGE, "python": sys.executable, "pod_spec": pod}

    def machines(self) -> list[str]:
        return sorted(self.cluster.pods("Running").values())

    def no_job_is_left(self) -> None:
        """Wait until no pod waits or runs. Each Secret belongs to a Job that is still known."""
        self.wait_until(
            lambda: self.cluster.pods("Pending", "Running") == {}, "the end of all pods", 15
        )
        jobs, secrets = (
            {each["metadata"]["name"] for each in self.cluster.api.all(kind)}
            for kind in ("jobs", "secrets")
        )
        assert secrets <= jobs


def ended(driver: subprocess.Popen[str], status: int = 0, seconds: float = 150.0) -> str:
    """Wait for a driver, and return what it printed."""
    printed, _ = driver.communicate(timeout=seconds)
    assert driver.returncode == status, printed
    return printed


@pytest.fixture
def hidden(tmp_path: Path) -> list[Path]:
    """Directories of the driver that nodes do not see."""
    found = [tmp_path / name for name in ("home", "project", "user")]
    for each in found:
        each.mkdir(exist_ok=True)
    return found


@pytest.fixture
def slurm(tmp_path: Path, project: Project, hidden: list[Path]) -> Iterator[SlurmCluster]:
    """Three nodes on which the directories of a driver are empty."""
    with slurm_cluster(tmp_path / "cluster", 3, hidden) as made:
        yield made


@pytest.fixture
def on_slurm(
    project: Project, slurm: SlurmCluster, tmp_path: Path, wait_until: Callable[..., None]
) -> SlurmSearches:
    return SlurmSearches(project, slurm, tmp_path, wait_until)


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[RayCluster]:
    """A head with four CPUs, and a host with two.

    For what does not harm it, as it takes a while to start.
    """
    with ray_cluster(2, 4) as made:
        yield made


@pytest.fixture
def ray(shared_ray: RayCluster) -> RayCluster:
    return shared_ray


@pytest.fixture
def on_ray(
    project: Project,
    ray: RayCluster,
    tmp_path: Path,
    hidden: list[Path],
    wait_until: Callable[..., None],
) -> RaySearches:
    """Searches on a cluster where only the head has anything in the driver's directories."""
    ray.hide(hidden)
    return RaySearches(project, ray, tmp_path, wait_until)


@pytest.fixture
def kubernetes(tmp_path: Path, project: Project, hidden: list[Path]) -> Iterator[KubernetesCluster]:
    """Three nodes of one CPU, on which the directories of a driver are empty."""
    with kubernetes_cluster(tmp_path / "cluster", 3, hidden) as made:
        yield made


@pytest.fixture
def on_kubernetes(
    project: Project, kubernetes: KubernetesCluster, tmp_path: Path, wait_until: Callable[..., None]
) -> KubernetesSearches:
    return KubernetesSearches(project, kubernetes, tmp_path, wait_until)


WHY_NOT = {
    "on_slurm": why_no_slurm,
    "on_ray": why_no_ray,
    "on_kubernetes": why_no_kubernetes,
}
"""The fixture of each engine's searches, and what says why there can be none here."""


def on_each_engine() -> Any:
    """Return the mark of a test that takes `clustered`: it is run once on each engine."""
    each = [
        pytest.param(name, marks=pytest.mark.skipif(bool(why := why_not()), reason=why))
        for name, why_not in WHY_NOT.items()
    ]
    return pytest.mark.parametrize("clustered", each, indirect=True)


@pytest.fixture
def clustered(request: pytest.FixtureRequest) -> Searches:
    """Searches on the engine that a test is run on."""
    found: Searches = request.getfixturevalue(request.param)
    return found

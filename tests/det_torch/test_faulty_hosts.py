"""A trial on other hosts, where every fault happens, gives the numbers of an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.clusters.hosts import Network, joined, why_no_network
from tests.support.exact_resume import history

from det_node.process import is_running

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_torch"
LEASE = 6.0
SLOW = """
import os
import time

from model_def import DigitsTrial


class SlowTrial(DigitsTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        with open(os.environ["TICKS"], "a") as file:
            file.write(f"{os.readlink('/proc/self/ns/net')} {time.monotonic()}\\n")
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
CONFIG = """
name: hosts
entrypoint: slow:SlowTrial
hyperparameters: {{global_batch_size: 32, hidden: 32, lr: 0.05, momentum: 0.9, dropout: 0.3, workers: 1, augment: true}}
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {{batches: 200}}}}
resources: {{slots_per_trial: {ranks}}}
distributed: {{backend: native}}
min_validation_period: {{batches: 50}}
min_checkpoint_period: {{batches: 20}}
scheduling_unit: 10
max_restarts: 0
reproducibility: {{experiment_seed: 3}}
checkpoint_storage: {{type: shared_fs, host_path: {storage}, save_trial_latest: 1, save_trial_best: 0}}
"""
ENGINE = "engine: {{name: ssh, hosts: [{hosts}], agent: 'ip netns exec {{host}}'}}\n"
# Gloo takes ranks on hosts of one name to be on one host.
NAMED = (
    "engine:\n  name: ssh\n  hosts: [{hosts}]\n"
    "  agent: ip netns exec {{host}} unshare --uts sh -c 'hostname {{host}}; exec \"$@\"' agent\n"
)

why_not = why_no_network()
pytestmark = pytest.mark.skipif(bool(why_not), reason=why_not)


@pytest.fixture
def network() -> Iterator[Network]:
    with joined(3) as network:
        yield network


class Job:
    """A driver on the first host, and agents on the others."""

    def __init__(self, det: Any, network: Network, tmp_path: Path, pause: float) -> None:
        self.det, self.network, self.user = det, network, tmp_path / "user"
        self.ticks = tmp_path / "ticks"
        self.env = {
            "HOME": str(self.user),
            "DET_LEASE": str(LEASE),
            "DET_SLOTS_TOTAL": "2",
            "TICKS": str(self.ticks),
            "PAUSE": str(pause),
        }
        self.argv = det.argv

    def start(self, *words: str) -> Any:
        self.det.argv = lambda given: [
            "ip",
            "netns",
            "exec",
            self.network.names[0],
            *self.argv(given),
        ]
        try:
            self.driver = self.det.start(*words, "-q", env=self.env)
        finally:
            self.det.argv = self.argv

    def batches(self) -> int:
        return len(self.ticks.read_text().splitlines()) if self.ticks.exists() else 0

    def agents(self) -> dict[str, int]:
        """Return the process of each agent that is there, by its host."""
        found = {}
        for file in self.user.glob(".cache/det/agents/*.json"):
            note = json.loads(file.read_text())
            if is_running(note["pid"], note["born"]):
                found[note["name"].partition("@")[2]] = note["pid"]
        return found

    def busy(self) -> str:
        """Return the host on which the trial trains; another one where that is not known."""
        here = self.ticks.read_text().splitlines()[-1].split()[0]
        for host, pid in self.agents().items():
            if os.readlink(f"/proc/{pid}/ns/net") == here:
                return host
        return self.network.names[1]

    # What may happen

    def blink(self) -> None:
        """A cable is out for a moment."""
        host = self.busy()
        self.network.cut(host)
        time.sleep(LEASE / 4)
        self.network.mend(host)

    def cut(self) -> None:
        """A host cannot be reached for longer than the lease, and is back later."""
        host = self.busy()
        self.network.cut(host)
        time.sleep(LEASE + 6.0)
        self.network.mend(host)

    def driver_dies(self) -> None:
        self.driver.kill()
        self.driver.wait()
        self.start("resume", "1")

    def agent_dies(self) -> None:
        self._signal(signal.SIGKILL)

    def host_is_taken_away(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self.agents().get(self.busy())) is not None:
            os.kill(pid, number)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_random_host_faults_change_no_result(
    det: Any,
    network: Network,
    tmp_path: Path,
    ranks: int,
    wait_until: Callable[..., None],
    request: pytest.FixtureRequest,
) -> None:
    """No two processes train the trial at once, and no failure is held against it.

    The numbers are equal, bit for bit.
    """
    rng, faults = random.Random(10 + ranks), int(request.config.getoption("--kills"))
    shutil.copy(EXAMPLE / "model_def.py", det.cwd / "model_def.py")
    (det.cwd / "slow.py").write_text(SLOW)
    text = CONFIG.format(ranks=ranks, storage=det.home / "checkpoints")
    (det.cwd / "here.yaml").write_text(text)
    (det.cwd / "there.yaml").write_text(text + ENGINE.format(hosts=", ".join(network.names[1:])))

    job = Job(det, network, tmp_path, pause=0.05 + 0.02 * faults)
    job.start("run", "there.yaml")
    kinds = [job.blink, job.cut, job.driver_dies, job.agent_dies, job.host_is_taken_away]
    happened = []
    for n in range(faults):
        before = job.batches()
        wait_until(
            lambda b=before: job.batches() > b + 3 or job.driver.poll() is not None, "training", 120
        )
        if job.driver.poll() is not None:
            pytest.fail(
                "it was over before enough had happened, after"
                f" {happened}:\n{job.driver.communicate()[0]}"
            )
        time.sleep(rng.uniform(0.0, 3.0))
        kind = kinds[n % 5] if faults < 5 else rng.choice(kinds)
        happened.append(kind.__name__)
        kind()
    said, _ = job.driver.communicate(timeout=300)
    assert job.driver.returncode == 0, f"{happened}\n{said}"

    env = {"DET_SLOTS_TOTAL": "2", "TICKS": str(tmp_path / "undisturbed")}
    det("run", "here.yaml", "-q", env=env)
    assert det.json("show", "1")["trials"][0]["restarts"] == 0
    assert history(det, 1) == history(det, 2)
    for one, other in zip(final_weights(det, 1), final_weights(det, 2), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in {*one, *other})
    assert_one_at_a_time([line.split() for line in job.ticks.read_text().splitlines()])
    assert job.agents() == {}


@pytest.mark.parametrize("backend", ["native", pytest.param("horovod", marks=pytest.mark.thorough)])
def test_two_ranks_on_two_hosts_train_as_on_one(
    det: Any, network: Network, tmp_path: Path, backend: str
) -> None:
    if backend == "horovod":
        pytest.importorskip("horovod.torch", reason="run: det horovod install")
    shutil.copy(EXAMPLE / "model_def.py", det.cwd / "model_def.py")
    (det.cwd / "slow.py").write_text(SLOW)
    text = CONFIG.format(ranks=2, storage=det.home / "checkpoints").replace("native", backend)
    text = text.replace("max_length: {batches: 200}", "max_length: {batches: 60}")
    (det.cwd / "here.yaml").write_text(text)
    (det.cwd / "there.yaml").write_text(text + NAMED.format(hosts=", ".join(network.names[1:])))

    job = Job(det, network, tmp_path, pause=0.0)
    job.env["DET_SLOTS_TOTAL"] = "1"
    job.start("run", "there.yaml")
    said, _ = job.driver.communicate(timeout=200)
    assert job.driver.returncode == 0, said
    hosts = {line.split()[0] for line in job.ticks.read_text().splitlines()}
    assert len(hosts) == 2

    env = {"DET_SLOTS_TOTAL": "2", "TICKS": str(tmp_path / "undisturbed")}
    det("run", "here.yaml", "-q", env=env)
    assert history(det, 1) == history(det, 2)
    for one, other in zip(final_weights(det, 1, 60), final_weights(det, 2, 60), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in {*one, *other})


def assert_one_at_a_time(ticks: list[list[str]]) -> None:
    """Between the first and the last batch of one host's stretch there is none of the other's."""
    stretches: list[tuple[str, float]] = []
    for host, at in sorted(ticks, key=lambda tick: float(tick[1])):
        if not stretches or stretches[-1][0] != host:
            stretches.append((host, float(at)))
    for (_, began), (_, next_began) in pairwise(stretches):
        assert next_began - began > 1.0, "two hosts train the same trial in turn"


def final_weights(det: Any, experiment: int, batches: int = 200) -> list[dict[str, Any]]:
    newest = max(det.json("checkpoint", "list", str(experiment)), key=lambda c: c["batches"])
    assert newest["batches"] == batches
    path = det.home / "checkpoints" / newest["uuid"] / "state_dict.pth"
    state: list[dict[str, Any]] = torch.load(path, weights_only=True)["models_state_dict"]
    return state

"""A trial class whose ranks are on several hosts, which see each other and the same files."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from det_driver.store import Store

CONFIG = """
name: hosts
entrypoint: model_def:Trial
reproducibility: {experiment_seed: 7}
max_restarts: 0
scheduling_unit: 10
min_checkpoint_period: {batches: 20}
resources: {slots_per_trial: SLOTS}
distributed: {hosts: [HOSTS]}
hyperparameters: {lr: 0.001, noise: 0.5, global_batch_size: 6}
searcher: {name: single, metric: val_loss, max_length: {batches: LENGTH}}
"""
MODEL = """
import os
import time
from det_testing.fakes import OwnedOneVar

class Trial(OwnedOneVar):
    def build_data(self):
        ranks = self.run.distributed
        namespace = os.stat("/proc/self/ns/net").st_ino
        print("rank", ranks.rank, "host", ranks.cross_rank, "local", ranks.local_rank, "in", namespace, flush=True)
        return Slow(super().build_data())

class Slow:
    def __init__(self, data):
        self.data = data
    def __getattr__(self, name):
        return getattr(self.data, name)
    def records(self, batch):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return self.data.records(batch)
"""


class Project:
    """Experiments whose driver runs on the first host."""

    def __init__(self, det, hosts, tmp_path) -> None:
        self.det, self.hosts = det, hosts
        self.inside: list[str] = []  # what the driver is started by
        site = tmp_path / "site" / "fakes-1.0.dist-info"
        site.mkdir(parents=True)
        site.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1.0\n")
        site.joinpath("entry_points.txt").write_text("[det]\nfakes = det_testing.fake_hooks\n")
        self.env = {"PYTHONPATH": str(site.parent), "DET_AGENT": hosts.agent}
        det.cwd.joinpath("model_def.py").write_text(MODEL)

    def write(self, length: int, slots: int, *names: str) -> None:
        text = (
            CONFIG.replace("LENGTH", str(length))
            .replace("SLOTS", str(slots))
            .replace("HOSTS", ", ".join(names))
        )
        self.det.cwd.joinpath("const.yaml").write_text(text)

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        argv = ["ip", "netns", "exec", self.hosts.names[0], *self.inside, *self.det.argv(words)]
        process = subprocess.Popen(
            argv,
            cwd=self.det.cwd,
            env=self.det.env({**self.env, **env}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.det.started.append(process)
        return process

    def run(self, *words: str, status: int = 0, **env: str) -> str:
        process = self.start(*words, **env)
        output, _ = process.communicate(timeout=90)
        assert process.returncode == status, output
        return output

    def history(self, experiment: int):
        with Store.reader(self.det.home) as store:
            [trial] = store.trials.list(experiment)
            return [
                (m.group, m.batches, m.values.get("loss"))
                for m in store.metrics.read(trial_id=trial.id)
            ]


@pytest.fixture
def project(det, hosts, tmp_path) -> Project:
    return Project(det, hosts, tmp_path)


def test_a_trial_trains_on_two_hosts(project) -> None:
    one, two = project.hosts.names
    project.write(40, 3, f"{one}:2", two)
    project.run("run", "const.yaml")
    said = sorted(
        line.partition("rank ")[2].split()
        for line in project.det("logs", "1").stdout.splitlines()
        if " in " in line
    )
    assert [line[:5] for line in said] == [
        ["0", "host", "0", "local", "0"],
        ["1", "host", "0", "local", "1"],
        ["2", "host", "1", "local", "0"],
    ]
    assert said[0][-1] == said[1][-1] != said[2][-1]
    assert [batches for group, batches, _ in project.history(1) if group == "training"] == [
        10,
        20,
        30,
        40,
    ]


@pytest.mark.thorough
def test_pause_reaches_both_hosts_and_changes_no_result(project, wait_until) -> None:
    project.write(500, 2, *project.hosts.names)
    project.run("run", "const.yaml")
    driver = project.start("run", "const.yaml", PAUSE="0.02")
    wait_until(
        lambda: len(project.det.json("list")) == 2 and len(project.det.metrics(2)) > 1,
        "some training",
        60,
    )
    driver.send_signal(signal.SIGTERM)
    driver.communicate(timeout=60)
    project.run("resume", "2")
    assert project.history(2) == project.history(1)


def test_a_rank_killed_on_another_host_ends_the_run(project, wait_until) -> None:
    project.write(2000, 2, *project.hosts.names)
    driver = project.start("run", "const.yaml", PAUSE="0.02")
    wait_until(
        lambda: (
            project.det.home.joinpath("experiments/1/experiment.db").exists()
            and len(project.det.metrics(1)) > 1
        ),
        "some training",
        60,
    )
    os.kill(worker_on(project.hosts.names[1]), signal.SIGKILL)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert "rank 1" in output


def worker_on(host: str) -> int:
    listed = subprocess.run(
        ["ip", "netns", "pids", host], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    found = [Path("/proc", pid, "cmdline").read_bytes() for pid in listed.split()]
    [pid] = [
        int(pid)
        for pid, words in zip(listed.split(), found, strict=True)
        if b"det_node.worker" in words
    ]
    return pid


@pytest.mark.parametrize("of_the_driver", ["", "7"])
def test_devices_and_variables_are_those_of_their_host(
    project, of_the_driver: str, monkeypatch
) -> None:
    """Whatever the driver's machine has: no GPU, or fewer than the run.

    The ranks of a host share that host's cores.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    one, two = project.hosts.names
    project.hosts.agent = (  # as ssh, which hands on nothing
        "ip netns exec {host} env -u KIND -u ONLY CUDA_VISIBLE_DEVICES=4,5"
    )
    project.env["DET_AGENT"] = project.hosts.agent
    names = ("DET_RANK", "KIND", "CUDA_VISIBLE_DEVICES", "ONLY", "OMP_NUM_THREADS")
    project.det.cwd.joinpath("model_def.py").write_text(
        MODEL + f"print('has', *(os.environ.get(name) or '-' for name in {names}), flush=True)\n"
    )
    project.write(10, 3, one, f"{two}:2")
    with project.det.cwd.joinpath("const.yaml").open("a") as file:
        file.write(
            "environment: {environment_variables: {cpu: [KIND=cpu, ONLY=cpu], cuda: [KIND=gpu]}}\n"
        )
    project.run("run", "const.yaml", CUDA_VISIBLE_DEVICES=of_the_driver)
    said = [
        line.partition(" has ")[2].split()
        for line in project.det("logs", "1").stdout.splitlines()
        if " has " in line
    ]
    chief = ["0", "gpu", "7", "-", "-"] if of_the_driver else ["0", "cpu", "-", "cpu", "-"]
    half = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert sorted(said) == [chief, ["1", "gpu", "4", "-", half], ["2", "gpu", "5", "-", half]]


def test_driver_with_a_loopback_host_name_is_found_by_others(project, tmp_path) -> None:
    """As on Debian and Ubuntu, where a machine's own name leads to 127.0.1.1.

    The others know its address.
    """
    one, two = project.hosts.names
    for host, address in ((one, "127.0.1.1"), (two, one)):
        (tmp_path / host).write_text(f"127.0.0.1 localhost\n{address} our-own-name\n")
    script = f'hostname $0; mount --bind {tmp_path}/$1 /etc/hosts; shift; exec "$@"'
    own = ["unshare", "--uts", "--mount", "sh", "-c", script]
    project.env["DET_AGENT"] = shlex.join(
        ["ip", "netns", "exec", "{host}", *own, "another-name", "{host}"]
    )
    project.write(10, 2, "our-own-name", two)
    project.inside = [*own, "our-own-name", one]
    project.run("run", "const.yaml")
    assert [batches for group, batches, _ in project.history(1) if group == "training"] == [10]


def test_slots_and_hosts_must_agree(det) -> None:
    det.cwd.joinpath("model_def.py").write_text(MODEL)
    text = (
        CONFIG.replace("LENGTH", "10").replace("SLOTS", "3").replace("HOSTS", "10.1.2.3, 10.1.2.4")
    )
    det.cwd.joinpath("const.yaml").write_text(text)
    refused = det("run", "const.yaml", status=2)
    assert "resources.slots_per_trial is 3, but distributed.hosts has 2 slots" in refused.stderr


def test_a_host_that_is_only_itself_to_others_is_refused(det) -> None:
    det.cwd.joinpath("model_def.py").write_text(MODEL)
    text = (
        CONFIG.replace("LENGTH", "10").replace("SLOTS", "2").replace("HOSTS", "localhost, 10.1.2.4")
    )
    det.cwd.joinpath("const.yaml").write_text(text)
    assert "'localhost' is localhost to the others" in det("run", "const.yaml", status=2).stderr

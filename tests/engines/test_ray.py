"""What happens to machines, raylets, heads and drivers of a Ray cluster costs no training.

No run has two processes at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from tests.det_driver.driver.conftest import Project
from tests.support.clusters.hosts import processes
from tests.support.clusters.ray import ENVIRON, RAY, RayCluster, ray_cluster, why_no_ray
from tests.support.clusters.searches import SPREAD, RaySearches, ended

why_not = why_no_ray()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(420)]

LENGTH, PAUSE = 80, 0.4
NODES = """
for node in ray.nodes():
    print(node["NodeManagerAddress"], node["NodeID"])
"""


class Jobs:
    """Commands on the head of a cluster, asked for on another machine."""

    def __init__(self, made: RayCluster, environ: dict[str, str]) -> None:
        own = {name: value for name, value in environ.items() if os.environ.get(name) != value}
        self._address = f"http://{made.network.names[0]}:8265"
        self._told = [
            *RAY,
            "job",
            "submit",
            f"--address={self._address}",
            f"--runtime-env-json={json.dumps({'env_vars': own})}",
        ]
        self._where = ["nsenter", f"--net=/run/netns/{made.network.names[1]}"]

    def __call__(self, *words: str, wait: bool = True) -> str:
        ask = [
            *self._where,
            *self._told,
            *([] if wait else ["--no-wait"]),
            "--",
            sys.executable,
            "-m",
            "det_driver.cli",
            *words,
        ]
        done = subprocess.run(
            ask, env=os.environ | ENVIRON, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(params=["straight", "carried"])
def either_way(request: pytest.FixtureRequest, ray: RayCluster) -> str:
    """Machines reach the driver, or have their words carried by Ray."""
    if request.param == "carried":
        ray.more["DET_ADDRESS"] = "127.0.0.1"
    return str(request.param)


def begun(searches: RaySearches, **settings: Any) -> Popen[str]:
    return searches.run("--quiet", length=LENGTH, pause=PAUSE, **searches.apart, **settings)


def a_trial(searches: RaySearches) -> tuple[str, int]:
    """Return a machine that a trial is on, and its process."""
    pids = searches.batches().keys()
    return next((host, pid) for host in searches.machines() for pid in pids & set(processes(host)))


def when_it_goes_on(searches: RaySearches, before: dict[int, int], since: float, fault: str) -> int:
    """Wait for the first batch of a process that was not there before.

    Say how long that took, and return the process.
    """
    searches.wait_until(
        lambda: searches.batches().keys() - before.keys(), "a run on another machine", 120
    )
    print(f"{time.time() - since:.1f} s from {fault} to the next run's first batch")
    (new,) = searches.batches().keys() - before.keys()
    return new


def test_drained_machine_saves_and_its_trial_resumes_elsewhere(on_ray: RaySearches) -> None:
    nodes = dict(line.split() for line in on_ray.cluster.ask(NODES).splitlines())
    driver = begun(on_ray)
    before = on_ray.under_way()
    host, _ = a_trial(on_ray)
    drained = time.time()
    reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test")
    on_ray.cluster.run(
        *RAY, "drain-node", "--node-id", nodes[host], *reason, "--deadline-remaining-seconds", "300"
    )
    when_it_goes_on(on_ray, before, drained, "the notice")
    ended(driver)
    assert sum(on_ray.batches().values()) == 2 * LENGTH  # each batch once: it saved where it was
    assert sorted(len(runs) for runs in on_ray.project.runs().values()) == [1, 2]
    on_ray.equals_an_undisturbed_one(length=LENGTH)
    on_ray.no_job_is_left()


def test_run_of_a_killed_raylet_has_ended_before_another_resumes(on_ray: RaySearches) -> None:
    driver = begun(on_ray)
    before = on_ray.under_way(12)
    host, old = a_trial(on_ray)
    on_ray.cluster.kill_raylet(host)
    when_it_goes_on(on_ray, before, time.time(), "the raylet's end")
    assert old not in processes(host)
    ended(driver)
    again = sum(on_ray.batches().values()) - 2 * LENGTH
    print(f"{again} batches were trained again")
    assert sorted(len(runs) for runs in on_ray.project.runs().values()) == [1, 2]
    on_ray.equals_an_undisturbed_one(length=LENGTH)


@pytest.mark.usefixtures("either_way")
def test_run_on_a_cut_machine_has_ended_before_another_resumes(on_ray: RaySearches) -> None:
    driver = begun(on_ray)
    before = on_ray.under_way(12)
    host, old = a_trial(on_ray)
    on_ray.cluster.cut(host)
    when_it_goes_on(on_ray, before, time.time(), "the cut")
    assert old not in processes(host)
    ended(driver)
    again = sum(on_ray.batches().values()) - 2 * LENGTH
    print(f"{again} batches were trained again")
    assert sorted(len(runs) for runs in on_ray.project.runs().values()) == [1, 2]
    on_ray.equals_an_undisturbed_one(length=LENGTH)


@pytest.mark.usefixtures("either_way")
def test_a_cable_that_is_pulled_for_a_moment_costs_nothing(on_ray: RaySearches) -> None:
    driver = begun(on_ray, lease=40.0)
    before = on_ray.under_way()
    host, _ = a_trial(on_ray)
    on_ray.cluster.cut(host)
    time.sleep(5.0)
    on_ray.cluster.mend(host)
    ended(driver)
    assert on_ray.batches() == dict.fromkeys(before, LENGTH)
    on_ray.equals_an_undisturbed_one(length=LENGTH)


def test_killed_driver_costs_nothing_where_ray_relays_messages(on_ray: RaySearches) -> None:
    on_ray.cluster.more["DET_ADDRESS"] = "127.0.0.1"
    driver = begun(on_ray, lease=40.0)
    before = on_ray.under_way()
    driver.kill()
    driver.wait()
    ended(on_ray.start("resume", "1", "--quiet", lease=40.0))
    assert on_ray.batches() == dict.fromkeys(before, LENGTH)
    on_ray.no_job_is_left()
    on_ray.equals_an_undisturbed_one(length=LENGTH)


def test_cutting_off_one_of_two_machines_moves_the_run_to_others(on_ray: RaySearches) -> None:
    text = SPREAD.replace("{batches: 40}", f"{{batches: {LENGTH}}}")
    driver = on_ray.run_text(
        on_ray.stored(text), "--quiet", pause=PAUSE, **on_ray.apart, slots_per_node=1
    )
    before = on_ray.under_way(12)
    host, old = a_trial(on_ray)
    on_ray.cluster.cut(host)
    cut = time.time()
    on_ray.wait_until(
        lambda: len(on_ray.batches().keys() - before.keys()) == 2,
        "two ranks on other machines",
        120,
    )
    print(f"{time.time() - cut:.1f} s from the cut to the next run's first batch")
    assert old not in processes(host)
    ended(driver)
    project = on_ray.project
    assert [len(runs) for runs in project.runs().values()] == [2]
    assert on_ray.restarts() == [0]
    project.det(
        "run", project.write(on_ray.stored(text), "local.yaml"), "--quiet", env=project.environ(2)
    )
    assert list(project.outcome(1).metrics.values()) == list(project.outcome(2).metrics.values())


def test_search_resumes_in_the_next_cluster_after_a_lost_head(on_ray: RaySearches) -> None:
    """Ray itself goes on only where its head keeps its state in a Redis.

    det needs that no more than the machines.
    """
    driver = begun(on_ray)
    before = on_ray.under_way(12)
    on_ray.cluster.down()
    lost = time.time()
    said, _ = driver.communicate(timeout=150)
    print(
        f"the driver ended {time.time() - lost:.1f} s later with status {driver.returncode}:"
        f" {said[-300:]}"
    )
    on_ray.cluster.up(2)
    again = on_ray.start("resume", "1", "--quiet", lease=8.0)
    on_ray.wait_until(
        lambda: len(on_ray.batches().keys() - before.keys()) == 2,
        "both trials in the next cluster",
        120,
    )
    print(f"{time.time() - lost:.1f} s from the loss of the head to the next run's first batch")
    ended(again)
    on_ray.equals_an_undisturbed_one(length=LENGTH)


def test_driver_job_outlives_its_submitter_and_obeys_commands(
    tmp_path: Path, project: Project, hidden: list[Path], wait_until: Callable[..., None]
) -> None:
    """By Ray's jobs, from a machine that is not of the cluster.

    Its head has the home, and the commands go there.
    """
    pytest.importorskip("aiohttp_cors", reason="jobs take ray[default]")
    with ray_cluster(3, 2, jobs=True) as made:
        made.hide(hidden)
        searches = RaySearches(project, made, tmp_path, wait_until)
        # Each command is a job that takes up to ten seconds. The trials must outlast three.
        slowly = searches.engine(1.0, **searches.apart)
        text = searches.search(2, LENGTH) + f"engine: {slowly}\n"
        job = Jobs(
            made,
            project.environ(
                1,
                {"DET_LEASE": "20", "HOME": str(searches.user), "DET_HOME": str(project.det.home)},
            ),
        )
        job("run", str(project.write(text)), "--quiet", wait=False)
        before = searches.under_way()
        assert "ACTIVE" in job("list").upper()
        job("pause", "1")
        assert "PAUSED" in job("list").upper()
        assert sum(searches.batches().values()) < 2 * LENGTH
        job("resume", "1", "--quiet", wait=False)
        wait_until(
            lambda: sum(searches.batches().values()) == 2 * LENGTH, "the end of both trials", 240
        )
        assert before.keys() < searches.batches().keys()
        wait_until(lambda: "COMPLETED" in job("list").upper(), "the end of the experiment", 60)
        searches.no_job_is_left()
        searches.equals_an_undisturbed_one(length=LENGTH)

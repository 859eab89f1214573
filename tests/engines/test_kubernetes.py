"""What happens to nodes, pods, queues, the API server and drivers costs no training.

No run has two processes at once.
"""

from __future__ import annotations

import json
import time

import pytest
from tests.det_kubernetes.conftest import Searches
from tests.det_slurm.conftest import ended
from tests.engines.test_slurm import SPREAD
from tests.kubernetes_cluster import why_no_kubernetes

why_not = why_no_kubernetes()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(300)]


def node_of_a_trial(searches: Searches) -> str:
    return min(searches.cluster.pods("Running").values())


def test_run_on_a_lost_node_has_ended_before_another_resumes(pods: Searches) -> None:
    driver = pods.run()
    before = pods.under_way(12)
    pods.cluster.lose(node_of_a_trial(pods))
    cut_at = time.time()
    pods.wait_until(lambda: len(pods.batches()) == 3, "a run on another node", 60)
    (new,) = pods.batches().keys() - before.keys()
    print(f"{time.time() - cut_at:.1f} s from the cut to the next run's first batch")
    ends = {pid: (pods.shared / f"batches-of-{pid}").stat().st_mtime for pid in before}
    assert min(ends.values()) < (pods.shared / f"batches-of-{new}").stat().st_mtime
    ended(driver)
    assert sorted(len(runs) for runs in pods.project.runs().values()) == [1, 2]
    assert pods.restarts() == [0, 0]
    assert pods.project.outcome(1).table == pods.undisturbed()


def test_a_driver_that_is_killed_costs_no_training(pods: Searches) -> None:
    driver = pods.run(lease=40.0)
    before = pods.under_way()
    driver.kill()
    driver.wait()
    ended(pods.start("resume", "1", "--quiet", lease=40.0))
    assert pods.batches() == dict.fromkeys(before, 40)
    assert [[run.number for run in runs] for runs in pods.project.runs().values()] == [[1], [1]]
    pods.no_job_is_left()
    assert pods.project.outcome(1).table == pods.undisturbed()


def test_an_api_server_that_is_down_is_waited_for(pods: Searches) -> None:
    driver = pods.run(trials=3, length=60)
    before = pods.under_way()
    pods.cluster.down()
    pods.wait_until(lambda: set(pods.batches().values()) >= {60}, "the end of a trial", 60)
    pods.cluster.up()
    ended(driver)
    assert sorted(pods.batches().values()) == [60, 60, 60]
    assert before.keys() < pods.batches().keys()
    assert [len(runs) for runs in pods.project.runs().values()] == [1, 1, 1]
    assert pods.project.outcome(1).table == pods.undisturbed(trials=3, length=60)


def test_job_evicted_by_kueue_saves_and_its_trial_resumes(pods: Searches) -> None:
    pods.cluster.quota["research"] = 2
    driver = pods.run(queue="research")
    pods.under_way()
    job = min(job["metadata"]["name"] for job in pods.cluster.api.all("jobs"))
    pods.cluster.take_back(job)
    pods.wait_until(lambda: ("jobs", job) not in pods.cluster.api.objects, "the end of the Job", 30)
    pods.cluster.quota["research"] = 2
    ended(driver)
    assert sum(pods.batches().values()) == 80
    assert pods.restarts() == [0, 0]
    assert pods.project.outcome(1).table == pods.undisturbed()


def test_paused_search_leaves_no_pod_and_no_orphan_secret(pods: Searches) -> None:
    driver = pods.run()
    pods.under_way()
    driver.terminate()
    ended(driver, status=130)
    pods.no_job_is_left()
    named = {each["metadata"]["name"] for each in pods.cluster.api.all("jobs")}
    assert {each["metadata"]["name"] for each in pods.cluster.api.all("secrets")} <= named
    ended(pods.start("resume", "1", "--quiet"))
    assert sum(pods.batches().values()) == 80
    assert pods.project.outcome(1).table == pods.undisturbed()


def test_job_at_its_time_limit_saves_and_its_trial_resumes(pods: Searches) -> None:
    driver = pods.run(time_limit=3600)
    pods.under_way()
    pods.cluster.expire(min(job["metadata"]["name"] for job in pods.cluster.api.all("jobs")))
    ended(driver)
    assert sum(pods.batches().values()) == 80
    assert pods.restarts() == [0, 0]
    assert sorted(len(runs) for runs in pods.project.runs().values()) == [1, 2]
    assert pods.project.outcome(1).table == pods.undisturbed()


def test_trial_in_two_pods_equals_a_local_one_despite_a_kill(pods: Searches) -> None:
    """The driver is killed, and no batch is trained again."""
    driver = pods.run_text(pods.stored(SPREAD), lease=40.0, slots_per_node=1)
    before = pods.under_way()
    assert len(set(pods.cluster.pods("Running").values())) == 2
    driver.kill()
    driver.wait()
    ended(pods.start("resume", "1", "--quiet", lease=40.0))
    assert pods.batches() == dict.fromkeys(before, 40)
    pods.no_job_is_left()
    project = pods.project
    project.det(
        "run", project.write(pods.stored(SPREAD), "local.yaml"), "--quiet", env=project.environ(2)
    )
    assert list(project.outcome(1).metrics.values()) == list(project.outcome(2).metrics.values())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cpus_per_slot": 2}, "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."),
        (
            {"queue": "research"},
            "Pending: couldn't assign flavors to pod set main: insufficient unused quota for cpu",
        ),
        ({}, 'FailedCreate: pods "det" is forbidden: exceeded quota: small'),
    ],
    ids=["no-room", "no-quota-of-kueue", "no-quota-of-pods"],
)
def test_for_what_a_search_waits_is_said(
    pods: Searches, settings: dict[str, object], said: str
) -> None:
    pods.cluster.no_pods = "" if settings else 'pods "det" is forbidden: exceeded quota: small'
    driver = pods.run("--json", length=4, pause=0, **settings)
    assert driver.stdout
    line = next(line for line in driver.stdout if "for 1 slot of the engine kubernetes: " in line)
    assert said in json.loads(line)["why"]
    driver.terminate()
    ended(driver, status=130)
    pods.no_job_is_left()

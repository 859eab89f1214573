"""What happens to nodes, pods, queues, the API server and drivers costs no training.

No run has two processes at once.
"""

from __future__ import annotations

import json

import pytest
from tests.support.clusters.kubernetes import why_no_kubernetes
from tests.support.clusters.searches import KubernetesSearches, ended

why_not = why_no_kubernetes()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(300)]


def test_an_api_server_that_is_down_is_waited_for(on_kubernetes: KubernetesSearches) -> None:
    driver = on_kubernetes.run(trials=3, length=60)
    before = on_kubernetes.under_way()
    on_kubernetes.cluster.down()
    on_kubernetes.wait_until(
        lambda: set(on_kubernetes.batches().values()) >= {60}, "the end of a trial", 60
    )
    on_kubernetes.cluster.up()
    ended(driver)
    assert sorted(on_kubernetes.batches().values()) == [60, 60, 60]
    assert before.keys() < on_kubernetes.batches().keys()
    assert [len(runs) for runs in on_kubernetes.project.runs().values()] == [1, 1, 1]
    assert on_kubernetes.project.outcome(1).table == on_kubernetes.undisturbed(trials=3, length=60)


def test_job_evicted_by_kueue_saves_and_its_trial_resumes(
    on_kubernetes: KubernetesSearches,
) -> None:
    on_kubernetes.cluster.quota["research"] = 2
    driver = on_kubernetes.run(queue="research")
    on_kubernetes.under_way()
    job = min(job["metadata"]["name"] for job in on_kubernetes.cluster.api.all("jobs"))
    on_kubernetes.cluster.take_back(job)
    on_kubernetes.wait_until(
        lambda: ("jobs", job) not in on_kubernetes.cluster.api.objects, "the end of the Job", 30
    )
    on_kubernetes.cluster.quota["research"] = 2
    ended(driver)
    assert sum(on_kubernetes.batches().values()) == 80
    assert on_kubernetes.restarts() == [0, 0]
    assert on_kubernetes.project.outcome(1).table == on_kubernetes.undisturbed()


def test_job_at_its_time_limit_saves_and_its_trial_resumes(
    on_kubernetes: KubernetesSearches,
) -> None:
    driver = on_kubernetes.run(time_limit=3600)
    on_kubernetes.under_way()
    on_kubernetes.cluster.expire(
        min(job["metadata"]["name"] for job in on_kubernetes.cluster.api.all("jobs"))
    )
    ended(driver)
    assert sum(on_kubernetes.batches().values()) == 80
    assert on_kubernetes.restarts() == [0, 0]
    assert sorted(len(runs) for runs in on_kubernetes.project.runs().values()) == [1, 2]
    assert on_kubernetes.project.outcome(1).table == on_kubernetes.undisturbed()


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
    on_kubernetes: KubernetesSearches, settings: dict[str, object], said: str
) -> None:
    on_kubernetes.cluster.no_pods = (
        "" if settings else 'pods "det" is forbidden: exceeded quota: small'
    )
    driver = on_kubernetes.run("--json", length=4, pause=0, **settings)
    assert driver.stdout
    line = next(line for line in driver.stdout if "for 1 slot of the engine kubernetes: " in line)
    assert said in json.loads(line)["why"]
    driver.terminate()
    ended(driver, status=130)
    on_kubernetes.no_job_is_left()

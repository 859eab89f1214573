"""A search on a cluster.

The numbers are those of a search on this machine, and what is wrong is said.
"""

from __future__ import annotations

import json

import pytest
from tests.support.clusters.kubernetes import why_no_kubernetes
from tests.support.clusters.searches import KubernetesSearches, ended

why_not = why_no_kubernetes()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(120)]


def test_trials_find_in_pods_what_they_find_here(on_kubernetes: KubernetesSearches) -> None:
    ended(on_kubernetes.run(trials=3, length=20, pause=0.01))
    assert on_kubernetes.project.outcome(1).table == on_kubernetes.undisturbed(trials=3, length=20)
    assert on_kubernetes.restarts() == [0, 0, 0]
    on_kubernetes.no_job_is_left()


def test_evicted_pod_saves_and_its_trial_resumes_elsewhere(
    on_kubernetes: KubernetesSearches,
) -> None:
    driver = on_kubernetes.run()
    on_kubernetes.under_way()
    on_kubernetes.cluster.drain(min(on_kubernetes.cluster.pods("Running").values()))
    ended(driver)
    assert sum(on_kubernetes.batches().values()) == 80  # each batch once: it saved where it was
    assert on_kubernetes.restarts() == [0, 0]
    assert sorted(len(runs) for runs in on_kubernetes.project.runs().values()) == [1, 2]
    assert on_kubernetes.project.outcome(1).table == on_kubernetes.undisturbed()


def test_an_image_that_cannot_be_had_is_said(on_kubernetes: KubernetesSearches) -> None:
    driver = on_kubernetes.run("--json", image="registry.example/nothing:1")
    assert driver.stdout
    said = next(line for line in driver.stdout if "for 1 slot of the engine kubernetes: " in line)
    assert json.loads(said)["why"].endswith(
        'ImagePullBackOff: Back-off pulling image "registry.example/nothing:1"'
    )
    driver.terminate()
    ended(driver, status=130)
    on_kubernetes.no_job_is_left()


def test_an_engine_is_checked_in_order(on_kubernetes: KubernetesSearches) -> None:
    text = (
        f"checkpoint_storage: {{type: directory, container_path: {on_kubernetes.shared}/storage}}\n"
    )
    path = on_kubernetes.project.write(f"{text}engine: {on_kubernetes.engine()}\n")
    said = ended(on_kubernetes.start("engine", "check", path)).splitlines()
    assert said[0].startswith("kubernetes: it answers; agents are to connect to 10.")
    machine, *rest = said[-3].split(": ")
    assert machine.startswith("det-check-")
    assert rest[0].startswith("an agent connected, with cpu:0")
    assert said[-2].startswith(f"{machine}: has python 3.")
    assert said[-1] == "the engine kubernetes works"

"""A search on a cluster.

The numbers are those of a search on this machine, and what is wrong is said.
"""

from __future__ import annotations

import json

import pytest
from tests.det_kubernetes.conftest import Searches
from tests.det_slurm.conftest import ended
from tests.kubernetes_cluster import why_no_kubernetes

why_not = why_no_kubernetes()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(120)]


def test_trials_find_in_pods_what_they_find_here(searches: Searches) -> None:
    ended(searches.run(trials=3, length=20, pause=0.01))
    assert searches.project.outcome(1).table == searches.undisturbed(trials=3, length=20)
    assert searches.restarts() == [0, 0, 0]
    searches.no_job_is_left()


def test_evicted_pod_saves_and_its_trial_resumes_elsewhere(searches: Searches) -> None:
    driver = searches.run()
    searches.under_way()
    searches.cluster.drain(min(searches.cluster.pods("Running").values()))
    ended(driver)
    assert sum(searches.batches().values()) == 80  # each batch once: it saved where it was
    assert searches.restarts() == [0, 0]
    assert sorted(len(runs) for runs in searches.project.runs().values()) == [1, 2]
    assert searches.project.outcome(1).table == searches.undisturbed()


def test_an_image_that_cannot_be_had_is_said(searches: Searches) -> None:
    driver = searches.run("--json", image="registry.example/nothing:1")
    assert driver.stdout
    said = next(line for line in driver.stdout if "for 1 slot of the engine kubernetes: " in line)
    assert json.loads(said)["why"].endswith(
        'ImagePullBackOff: Back-off pulling image "registry.example/nothing:1"'
    )
    driver.terminate()
    ended(driver, status=130)
    searches.no_job_is_left()


def test_an_engine_is_checked_in_order(searches: Searches) -> None:
    text = f"checkpoint_storage: {{type: directory, container_path: {searches.shared}/storage}}\n"
    path = searches.project.write(f"{text}engine: {searches.engine()}\n")
    said = ended(searches.start("engine", "check", path)).splitlines()
    assert said[0].startswith("kubernetes: it answers; agents are to connect to 10.")
    machine, *rest = said[-3].split(": ")
    assert machine.startswith("det-check-")
    assert rest[0].startswith("an agent connected, with cpu:0")
    assert said[-2].startswith(f"{machine}: has python 3.")
    assert said[-1] == "the engine kubernetes works"

"""What holds on each engine: faults cost no training, and no trial has two runs at once."""

from __future__ import annotations

import time

import pytest
from tests.support.clusters.searches import SPREAD, Searches, ended, on_each_engine

pytestmark = [pytest.mark.process, pytest.mark.timeout(420)]


@on_each_engine()
def test_a_driver_that_is_killed_costs_no_training(clustered: Searches) -> None:
    driver = clustered.run(lease=40.0, **clustered.apart)
    before = clustered.under_way()
    driver.kill()
    driver.wait()
    ended(clustered.start("resume", "1", "--quiet", lease=40.0))
    assert clustered.batches() == dict.fromkeys(before, 40)
    runs = clustered.project.runs().values()
    assert [[run.number for run in each] for each in runs] == [[1], [1]]
    clustered.no_job_is_left()
    clustered.equals_an_undisturbed_one()


@on_each_engine()
def test_a_paused_search_leaves_no_job_and_can_be_resumed(clustered: Searches) -> None:
    driver = clustered.run(**clustered.apart)
    clustered.under_way()
    driver.terminate()
    ended(driver, status=130)
    clustered.no_job_is_left()
    ended(clustered.start("resume", "1", "--quiet"))
    assert sum(clustered.batches().values()) == 80
    clustered.equals_an_undisturbed_one()


@on_each_engine()
def test_run_on_a_lost_node_has_ended_before_another_resumes(clustered: Searches) -> None:
    driver = clustered.run("--quiet", length=80, pause=0.2, **clustered.apart)
    before = clustered.under_way(12)
    clustered.cluster.lose(min(clustered.machines()))
    cut_at = time.time()
    clustered.wait_until(lambda: len(clustered.batches()) == 3, "a run on another node", 120)
    (new,) = clustered.batches().keys() - before.keys()
    print(f"{time.time() - cut_at:.1f} s from the cut to the next run's first batch")
    ends = {pid: (clustered.shared / f"batches-of-{pid}").stat().st_mtime for pid in before}
    assert min(ends.values()) < (clustered.shared / f"batches-of-{new}").stat().st_mtime
    ended(driver)
    assert sorted(len(runs) for runs in clustered.project.runs().values()) == [1, 2]
    clustered.equals_an_undisturbed_one(length=80)


@on_each_engine()
def test_trial_on_two_nodes_equals_a_local_one_despite_a_kill(clustered: Searches) -> None:
    """The driver is killed, and no batch is trained again."""
    driver = clustered.run_text(
        clustered.stored(SPREAD), lease=40.0, slots_per_node=1, **clustered.apart
    )
    before = clustered.under_way()
    assert len(set(clustered.machines())) == 2
    driver.kill()
    driver.wait()
    ended(clustered.start("resume", "1", "--quiet", lease=40.0))
    assert clustered.batches() == dict.fromkeys(before, 40)
    clustered.no_job_is_left()
    project = clustered.project
    path = project.write(clustered.stored(SPREAD), "local.yaml")
    project.det("run", path, "--quiet", env=project.environ(2))
    assert list(project.outcome(1).metrics.values()) == list(project.outcome(2).metrics.values())

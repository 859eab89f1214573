"""What happens to nodes, jobs, controllers and drivers costs no training, and no run has two processes at once."""

from __future__ import annotations

import time

import pytest
from tests.det_slurm.conftest import Searches, ended
from tests.slurm_cluster import why_no_slurm

why_not = why_no_slurm()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(300)]


SPREAD = """
searcher: {name: single, metric: val_loss, max_length: {batches: 40}}
min_validation_period: 13
min_checkpoint_period: 10
resources: {slots_per_trial: 2}
"""


def node_of_a_trial(searches: Searches) -> str:
    return min(node for state, node in searches.cluster.jobs("running").values())


def test_a_job_of_higher_priority_takes_a_node_and_its_trial_goes_on_elsewhere(searches: Searches) -> None:
    driver = searches.run()
    searches.under_way()
    node = node_of_a_trial(searches)
    script = searches.shared / "urgent.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    searches.cluster.run(
        "sbatch", "-p", "high", "-J", "urgent", "-w", node, "--exclusive", "-o", "/dev/null", str(script)
    )
    ended(driver)
    assert sum(searches.batches().values()) == 80  # each batch once: it saved where it was
    assert searches.restarts() == [0, 0]
    assert sorted(len(runs) for runs in searches.project.runs().values()) == [1, 2]
    assert searches.project.outcome(1).table == searches.undisturbed()


def test_a_node_that_is_cut_off_has_ended_its_run_before_another_goes_on_with_it(searches: Searches) -> None:
    driver = searches.run()
    before = searches.under_way(12)
    searches.cluster.cut(node_of_a_trial(searches))
    cut_at = time.time()
    searches.wait_until(lambda: len(searches.batches()) == 3, "a run on another node", 60)
    (new,) = searches.batches().keys() - before.keys()
    print(f"{time.time() - cut_at:.1f} s from the cut to the next run's first batch")
    ends = {pid: (searches.shared / f"batches-of-{pid}").stat().st_mtime for pid in before}
    assert min(ends.values()) < (searches.shared / f"batches-of-{new}").stat().st_mtime
    ended(driver)
    assert sorted(len(runs) for runs in searches.project.runs().values()) == [1, 2]
    assert searches.restarts() == [0, 0]
    assert searches.project.outcome(1).table == searches.undisturbed()


def test_a_controller_that_is_killed_and_gone_for_half_a_minute_costs_nothing(searches: Searches) -> None:
    driver = searches.run(trials=3, length=240)
    before = searches.under_way()
    seen = time.time()
    saved = (
        searches.cluster.directory / "state" / "job_state"
    )  # of jobs that are not in it a killed controller knows nothing
    searches.wait_until(lambda: saved.exists() and saved.stat().st_mtime > seen, "Slurm to have saved its jobs", 60)
    searches.cluster.kill("ctl")
    time.sleep(30.0)
    searches.cluster.start("ctl")
    ended(driver)
    assert sorted(searches.batches().values()) == [240, 240, 240]
    assert before.keys() < searches.batches().keys()
    assert [len(runs) for runs in searches.project.runs().values()] == [1, 1, 1]
    assert searches.project.outcome(1).table == searches.undisturbed(trials=3, length=240)


def test_a_driver_that_is_killed_costs_no_training(searches: Searches) -> None:
    driver = searches.run(lease=40.0)
    before = searches.under_way()
    driver.kill()
    driver.wait()
    ended(searches.start("resume", "1", "--quiet", lease=40.0))
    assert searches.batches() == dict.fromkeys(before, 40)
    assert [[run.number for run in runs] for runs in searches.project.runs().values()] == [[1], [1]]
    searches.no_job_is_left()
    assert searches.project.outcome(1).table == searches.undisturbed()


def test_a_job_that_somebody_cancels_saves_and_its_trial_goes_on(searches: Searches) -> None:
    driver = searches.run()
    searches.under_way()
    job = min(searches.cluster.jobs("running"))
    searches.cluster.run("scancel", f"--name={job}")
    ended(driver)
    assert sum(searches.batches().values()) == 80
    assert searches.restarts() == [0, 0]
    assert searches.project.outcome(1).table == searches.undisturbed()


def test_a_paused_search_leaves_no_job(searches: Searches) -> None:
    driver = searches.run()
    searches.under_way()
    driver.terminate()
    ended(driver, status=130)
    searches.no_job_is_left()
    ended(searches.start("resume", "1", "--quiet"))
    assert sum(searches.batches().values()) == 80
    assert searches.project.outcome(1).table == searches.undisturbed()


def test_a_trial_on_two_nodes_trains_as_on_one_machine_and_a_killed_driver_costs_it_nothing(searches: Searches) -> None:
    driver = searches.run_text(searches.stored(SPREAD), lease=40.0, slots_per_node=1)
    before = searches.under_way()
    (nodes,) = (nodes for _, nodes in searches.cluster.jobs("running").values())
    assert len(searches.cluster.run("scontrol", "show", "hostnames", nodes).split()) == 2
    driver.kill()
    driver.wait()
    ended(searches.start("resume", "1", "--quiet", lease=40.0))
    assert searches.batches() == dict.fromkeys(before, 40)
    searches.no_job_is_left()
    project = searches.project
    project.det("run", project.write(searches.stored(SPREAD), "local.yaml"), "--quiet", env=project.environ(2))
    assert list(project.outcome(1).metrics.values()) == list(project.outcome(2).metrics.values())

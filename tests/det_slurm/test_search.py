"""A search on a cluster.

The numbers are those of a search on this machine, and what is wrong is said.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.clusters.searches import SlurmSearches, ended
from tests.support.clusters.slurm import why_no_slurm

why_not = why_no_slurm()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(120)]


def test_trials_find_on_nodes_what_they_find_here(on_slurm: SlurmSearches) -> None:
    ended(on_slurm.run(trials=3, length=20, pause=0.01))
    assert on_slurm.project.outcome(1).table == on_slurm.undisturbed(trials=3, length=20)
    assert on_slurm.restarts() == [0, 0, 0]
    on_slurm.no_job_is_left()


def test_what_the_cluster_refuses_is_said(on_slurm: SlurmSearches) -> None:
    said = ended(on_slurm.run(partition="nowhere"), status=2)
    assert "no agent could be started; the last one's words: sbatch: error:" in said
    assert "nvalid partition" in said


def test_why_an_agent_does_not_start_on_a_node_is_said(on_slurm: SlurmSearches) -> None:
    said = ended(on_slurm.run(python="/nowhere/python3"), status=2)
    assert "no agent could be started; the last one's words: job " in said
    assert "/nowhere/python3" in said


def test_for_what_a_search_waits_is_said(on_slurm: SlurmSearches, tmp_path: Path) -> None:
    script = tmp_path / "shared/hold.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    on_slurm.cluster.run(
        "sbatch",
        "-p",
        "high",
        "--job-name=held",
        "--exclusive",
        "--nodes=3",
        "--output=/dev/null",
        str(script),
    )
    driver = on_slurm.run("--json", length=4, pause=0)
    assert driver.stdout
    said = next(line for line in driver.stdout if "for 1 slot of the engine slurm: " in line)
    assert json.loads(said)["event"] == "trials_waiting"
    on_slurm.cluster.run("scancel", "--name=held")
    ended(driver)


def test_pool_is_a_partition_and_priority_is_a_nice_value(on_slurm: SlurmSearches) -> None:
    text = (
        "searcher: {name: single, metric: val_loss, max_length: 100}\nresources: {resource_pool:"
        " high, priority: 7}\n"
    )
    driver = on_slurm.run_text(on_slurm.stored(text), "--quiet", pause=0.1)
    on_slurm.wait_until(lambda: on_slurm.cluster.jobs("running") != {}, "the job", 60)
    assert on_slurm.cluster.run("squeue", "-h", "-o", "%P|%y").split() == ["high|7"]
    driver.terminate()
    ended(driver, status=130)


def test_a_storage_that_nodes_do_not_see_is_refused_by_name(on_slurm: SlurmSearches) -> None:
    path = on_slurm.project.write(
        "searcher: {name: single, metric: val_loss, max_length: 4}\nengine:"
        f" {on_slurm.engine()}\n"
    )
    said = ended(on_slurm.start("run", path, "--quiet"), status=2)
    home = on_slurm.project.det.home / "checkpoints"
    assert (
        f"does not see what this one writes to {home}; name a checkpoint_storage that both reach"
        in said
    )
    assert not list(home.glob("probe-*"))


def test_an_engine_is_checked_in_order(on_slurm: SlurmSearches) -> None:
    path = on_slurm.project.write(
        "checkpoint_storage: {type: directory, container_path:"
        f" {on_slurm.shared}/storage}}\nengine: {on_slurm.engine()}\n"
    )
    said = ended(on_slurm.start("engine", "check", path)).splitlines()
    assert said[0].startswith("slurm: it answers; agents are to connect to 10.")
    machine, *rest = said[-3].split(": ")
    assert machine in on_slurm.cluster.nodes
    assert rest[0].startswith("an agent connected, with cpu:0")
    assert said[-2].startswith(f"{machine}: has python 3.")
    assert said[-1] == "the engine slurm works"
    assert not list((on_slurm.shared / "storage").iterdir())
    wrong = ended(
        on_slurm.start(
            "engine",
            "check",
            on_slurm.project.write(f"engine: {on_slurm.engine(partition='no')}\n"),
        ),
        status=2,
    )
    assert "det: no agent could be started; the last one's words: sbatch: error:" in wrong

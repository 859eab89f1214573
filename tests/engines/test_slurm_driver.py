"""A driver in a job of its own.

Who submitted it may go, and whatever ends its job, the next one takes up what trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.conftest import Project
from tests.support.clusters.searches import SlurmSearches
from tests.support.clusters.slurm import slurm_cluster, why_no_slurm
from tests.support.shared_disk import mounted, mounting, why_no_shared_disk

from det_driver.store import Store

why_not = why_no_slurm() or why_no_shared_disk()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(400)]


class Detached(SlurmSearches):
    """Searches whose home is on a disk that the nodes have, too.

    det is called on the login node.
    """

    def ask(self, *words: str | Path, status: int = 0) -> str:
        """Return what a command says on the login node, which is over then."""
        asked = self.start(*words, lease=40.0)
        said, _ = asked.communicate(timeout=150)
        assert asked.returncode == status, said
        return said

    def detach(self, *, trials: int = 2, length: int = 60, **engine: Any) -> str:
        """Start a search of trials of a core each."""
        text = self.search(trials, length)
        text += f"engine: {self.engine(0.1, sbatch_args=[], **engine)}\n"
        return self.ask("run", self.project.write(text), "--detach")

    def driver(self) -> tuple[str, str] | None:
        """Return the state and the node of the driver's job."""
        return next(
            (job for name, job in self.cluster.jobs("running").items() if name.endswith("-driver")),
            None,
        )

    def over(self) -> bool:
        return self.cluster.jobs("pending,running,completing") == {}

    def said(self) -> str:
        return (self.project.det.home / "experiments" / "1" / "driver.log").read_text()

    def ends_as_undisturbed(self, length: int = 60) -> None:
        """Wait until no job is left; each batch was trained once."""
        self.wait_until(self.over, "the end of the search", 200)
        assert sum(self.batches().values()) == 2 * length, self.said()
        assert self.restarts() == [0, 0]
        assert self.project.outcome(1).table == self.undisturbed(2, length)


@pytest.fixture
def locks() -> bool:
    return True


@pytest.fixture
def detached(
    project: Project, tmp_path: Path, locks: bool, wait_until: Callable[..., None]
) -> Iterator[Detached]:
    disk, home = tmp_path / "disk", tmp_path / "shared" / "home"
    hidden = [tmp_path / "project", tmp_path / "user"]
    for each in (disk, home, *hidden):
        each.mkdir(parents=True, exist_ok=True)
    project.det.home = home
    with (
        mounted(disk, home),
        slurm_cluster(tmp_path / "cluster", 3, hidden, mounting(disk, home, locks=locks)) as made,
    ):
        yield Detached(project, made, tmp_path, wait_until)


def test_who_submits_it_may_go_and_asks_from_the_login_node(detached: Detached) -> None:
    said = detached.detach()
    assert said.startswith("experiment 1 runs in the job det-"), said
    before = detached.under_way()
    assert "ACTIVE" in detached.ask("list")
    follower = detached.start("logs", "-f", "1")
    detached.ask("pause", "1")
    detached.wait_until(detached.over, "the end of all jobs", 60)
    assert follower.wait(30) == 0  # it has heard of the end from the job
    assert "PAUSED" in detached.ask("list")
    detached.ask("resume", "1", "--detach")
    detached.ends_as_undisturbed()
    assert len(detached.batches()) == 4  # two runs of each trial, the first ones of which saved
    assert before.keys() < detached.batches().keys()


def end_by_a_kill(detached: Detached, node: str) -> None:
    detached.cluster.run(
        "scancel", "--signal=KILL", "--full", "--state=RUNNING", "-n", name_of(detached)
    )


def end_by_preemption(detached: Detached, node: str) -> None:
    script = detached.shared / "urgent.sh"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    words = [
        "-p",
        "high",
        "-J",
        "urgent",
        "-w",
        node,
        "--exclusive",
        "-o",
        "/dev/null",
        str(script),
    ]
    detached.cluster.run("sbatch", *words)


def end_by_a_limit(detached: Detached, node: str) -> None:
    """It was submitted with one."""


def name_of(detached: Detached) -> str:
    return next(name for name in detached.cluster.jobs("running") if name.endswith("-driver"))


@pytest.mark.parametrize(
    ("end", "length"),
    [(end_by_a_kill, 150), (end_by_preemption, 600), (end_by_a_limit, 900)],
    ids=["killed", "preempted", "limited"],
)
def test_whatever_ends_its_job_the_next_one_takes_up_what_trains(
    detached: Detached, end: Callable[[Detached, str], None], length: int
) -> None:
    limited = end is end_by_a_limit
    detached.detach(length=length, driver_args=["-w", "n3", "--time=1"] if limited else [])
    before = detached.under_way()
    job = detached.driver()
    assert job is not None
    first = pid_of(detached)
    began = time.monotonic()
    end(detached, job[1])
    detached.wait_until(lambda: pid_of(detached) not in (None, first), "the next driver", 150)
    print(
        f"{time.monotonic() - began:.1f} s until the next driver;"
        f" {detached.cluster.jobs('running')}"
    )
    trained = detached.batches()
    detached.ends_as_undisturbed(length)
    if end is end_by_a_kill:
        assert detached.batches().keys() == before.keys(), trained  # the runs went on meanwhile


def pid_of(detached: Detached) -> int | None:
    with Store.reader(detached.project.det.home) as store:
        return store.experiments.get(1).pid


@pytest.mark.parametrize("locks", [False], ids=["no locks"])
def test_file_system_whose_locks_fail_is_reported_and_run_stops(detached: Detached) -> None:
    text = detached._text(2, 60) + f"engine: {detached.engine(0.1, sbatch_args=[])}\n"
    said = detached.ask("run", detached.project.write(text), "--detach", status=2)
    assert (
        "experiments/1 is not seen on this machine: locks of that file system do not hold between"
        " machines" in said
    )
    detached.wait_until(detached.over, "the end of all jobs", 60)
    assert "PAUSED" in detached.ask("list")


def test_a_home_that_nodes_do_not_see_is_said(on_slurm: SlurmSearches) -> None:
    text = on_slurm.search(2, 60) + f"engine: {on_slurm.engine(0.1)}\n"
    asked = on_slurm.start("run", on_slurm.project.write(text), "--detach")
    said, _ = asked.communicate(timeout=150)
    assert asked.returncode == 2
    assert "the driver ended at once" in said
    assert "may not see" in said
    assert not [
        name for name in on_slurm.cluster.jobs("pending,running") if name.endswith("-driver")
    ]


def test_home_used_by_a_local_driver_stays_on_this_machine(on_slurm: SlurmSearches) -> None:
    project = on_slurm.project
    text = on_slurm.search(2, 60)
    here = project.det.start(
        "run", project.write(text, "here.yaml"), env=project.environ(2, {"PAUSE": "0.1"})
    )
    on_slurm.wait_until(lambda: bool([*project.det.home.glob("batches-of-*")]), "batches", 60)
    asked = on_slurm.start(
        "run", project.write(f"{text}engine: {on_slurm.engine(0.1)}\n"), "--detach"
    )
    said, _ = asked.communicate(timeout=60)
    assert asked.returncode == 2
    assert "experiment 1 is driven on this one: wait for it, or det pause 1" in said
    assert not (project.det.home / "several-machines").exists()
    assert not on_slurm.cluster.jobs("pending,running")
    project.det("pause", "1")
    here.wait(60)

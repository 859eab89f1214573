"""What happens to nodes, jobs, controllers and drivers costs no training.

No run has two processes at once.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

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


def test_preempted_job_saves_and_its_trial_resumes_elsewhere(searches: Searches) -> None:
    driver = searches.run()
    searches.under_way()
    node = node_of_a_trial(searches)
    script = searches.shared / "urgent.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    searches.cluster.run(
        "sbatch",
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
    )
    ended(driver)
    assert sum(searches.batches().values()) == 80  # each batch once: it saved where it was
    assert searches.restarts() == [0, 0]
    assert sorted(len(runs) for runs in searches.project.runs().values()) == [1, 2]
    assert searches.project.outcome(1).table == searches.undisturbed()


def test_run_on_a_cut_off_node_has_ended_before_another_resumes(searches: Searches) -> None:
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


def test_controller_outage_of_half_a_minute_costs_nothing(searches: Searches) -> None:
    driver = searches.run(trials=3, length=240)
    before = searches.under_way()
    seen = time.time()
    saved = (
        searches.cluster.directory / "state" / "job_state"
    )  # of jobs that are not in it a killed controller knows nothing
    searches.wait_until(
        lambda: saved.exists() and saved.stat().st_mtime > seen, "Slurm to have saved its jobs", 60
    )
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


SCRIPT = """
import os, time
from pathlib import Path
from det_core import core

with core.init() as context:
    done, latest = context.info.steps_completed, context.info.latest_checkpoint
    if latest is not None:
        with context.checkpoint.restore_path(latest) as path:
            assert (path / "batches").read_text() == str(done)
    while done < 100:
        time.sleep(1)
        done += 1
        with open(Path(os.environ["DET_HOME"]) / f"batches-of-{os.getpid()}", "a") as file:
            file.write("x")
        context.train.report_training_metrics(done, {"loss": 1 / done})
        if context.preempt.should_preempt():
            with context.checkpoint.store_path({"steps_completed": done}) as (path, _):
                (path / "batches").write_text(str(done))
            break
    else:
        context.train.report_validation_metrics(done, {"loss": 1 / done})
"""


def started_script(searches: Searches, entrypoint: str, **engine: str) -> subprocess.Popen[str]:
    """Start SCRIPT by a command of a shell, and return its driver."""
    searches.project.det.cwd.joinpath("train.py").write_text(SCRIPT)
    text = (
        f"name: x\nentrypoint: {entrypoint}\nmax_restarts: 0\n"
        "searcher: {name: single, metric: loss, max_length: 100}\n"
        f"engine: {searches.engine(**engine)}\n"
    )
    path = searches.project.det.cwd / "x.yaml"
    path.write_text(searches.stored(text))
    return searches.start("run", path)


def test_script_behind_a_shell_saves_when_its_job_is_canceled(searches: Searches) -> None:
    driver = started_script(searches, "cd . && python3 train.py | tee log")
    searches.wait_until(lambda: sum(searches.batches().values()) > 5, "its first batches", 90)
    (job,) = searches.cluster.jobs("running")
    searches.cluster.run("scancel", f"--name={job}")
    ended(driver)
    # Each batch once.
    assert sum(searches.batches().values()) == 100
    assert len(searches.batches()) == 2
    assert searches.restarts() == [0]


def test_script_at_its_time_limit_saves_and_goes_on(searches: Searches) -> None:
    """Slurm ends the first job after a minute, and 5 s later kills what is left of it."""
    driver = started_script(searches, "python3 train.py", time_limit="1")
    searches.wait_until(lambda: "TIMEOUT" in str(searches.cluster.jobs()), "the limit", 150)
    ended(driver)
    # Each batch once.
    assert sum(searches.batches().values()) == 100
    assert len(searches.batches()) == 2
    assert searches.restarts() == [0]


def test_a_paused_search_leaves_no_job(searches: Searches) -> None:
    driver = searches.run()
    searches.under_way()
    driver.terminate()
    ended(driver, status=130)
    searches.no_job_is_left()
    ended(searches.start("resume", "1", "--quiet"))
    assert sum(searches.batches().values()) == 80
    assert searches.project.outcome(1).table == searches.undisturbed()


def test_trial_on_two_nodes_equals_a_local_one_despite_a_kill(searches: Searches) -> None:
    """The driver is killed, and no batch is trained again."""
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
    project.det(
        "run",
        project.write(searches.stored(SPREAD), "local.yaml"),
        "--quiet",
        env=project.environ(2),
    )
    assert list(project.outcome(1).metrics.values()) == list(project.outcome(2).metrics.values())


class DriverJob:
    """Commands of det by the recipe of docs/guides/clusters.md.

    The driver is a job, and the home is where nodes see it.
    """

    def __init__(self, searches: Searches) -> None:
        self.searches, self.home = searches, searches.shared / "home"
        self.environ = (
            searches.cluster.environ | searches.project.environ(1) | {"DET_HOME": str(self.home)}
        )
        self.environ |= {"HOME": str(searches.user), "DET_LEASE": "20"}

    def command(self, *words: str | Path) -> str:
        return shlex.join(
            [
                "env",
                f"PYTHONPATH={self.environ['PYTHONPATH']}",
                *map(str, self.searches.project.det.argv(words)),
            ]
        )

    def submit(self, *words: str | Path) -> str:
        """Submit a driver; return the number of its job."""
        log = self.searches.shared / "driver.log"
        options = [
            "sbatch",
            "--parsable",
            "-J",
            "driver",
            "-w",
            "n1",
            "-n",
            "1",
            "--signal=B:TERM@60",
            "-o",
            str(log),
        ]
        return self._run(
            *options, "--open-mode=append", "--wrap", f"exec {self.command(*words)}"
        ).strip()

    def ask(self, job: str, *words: str, to_its_end: bool = True) -> str:
        """Do a command where the driver is.

        One that ends the driver ends the job, and so itself.
        """
        step = ("srun", "--jobid", job, "--overlap", "-n", "1", "sh", "-c", self.command(*words))
        return self._run(*step, well=to_its_end)

    def over(self) -> bool:
        return "driver" not in self.searches.cluster.jobs("pending,running,completing")

    def _run(self, *words: str, well: bool = True) -> str:
        done = subprocess.run(
            self.searches.cluster.argv(words),
            env=os.environ | self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0 or not well, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


def test_driver_in_a_job_obeys_commands_and_resumes(searches: Searches) -> None:
    """The driver lists, pauses, ends at its time limit and resumes, each in its own job."""
    driver = DriverJob(searches)
    code = searches.shared / "code"
    code.mkdir()
    (code / "model_def.py").write_text((searches.project.det.cwd / "model_def.py").read_text())
    text = searches._text(2, 60) + f"engine: {searches.engine(0.1)}\n"
    (code / "search.yaml").write_text(searches.project.write(text).read_text())

    job = driver.submit("run", code / "search.yaml", code, "--quiet")
    before = searches.under_way()
    assert "ACTIVE" in driver.ask(job, "list")
    driver.ask(job, "pause", "1", to_its_end=False)
    searches.wait_until(driver.over, "the end of the driver's job", 60)
    searches.no_job_is_left()

    driver.submit("resume", "1", "--quiet")
    searches.wait_until(
        lambda: len(searches.batches().keys() - before.keys()) == 2, "runs of both trials", 90
    )
    searches.cluster.run(
        "scancel", "--batch", "--signal=TERM", "-n", "driver"
    )  # as at the job's time limit
    searches.wait_until(driver.over, "the end of the driver's job", 60)

    driver.submit("resume", "1", "--quiet")
    searches.wait_until(driver.over, "the end of the search", 150)
    assert sum(searches.batches().values()) == 2 * 60, (searches.shared / "driver.log").read_text()
    searches.project.det.home = driver.home
    assert searches.project.outcome(1).table == searches.undisturbed(2, 60)

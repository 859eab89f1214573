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
from tests.support.clusters.searches import SlurmSearches, ended
from tests.support.clusters.slurm import why_no_slurm

why_not = why_no_slurm()
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.timeout(300)]


def test_preempted_job_saves_and_its_trial_resumes_elsewhere(on_slurm: SlurmSearches) -> None:
    driver = on_slurm.run()
    on_slurm.under_way()
    node = min(on_slurm.machines())
    script = on_slurm.shared / "urgent.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    on_slurm.cluster.run(
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
    assert sum(on_slurm.batches().values()) == 80  # each batch once: it saved where it was
    assert on_slurm.restarts() == [0, 0]
    assert sorted(len(runs) for runs in on_slurm.project.runs().values()) == [1, 2]
    assert on_slurm.project.outcome(1).table == on_slurm.undisturbed()


def test_controller_outage_of_half_a_minute_costs_nothing(on_slurm: SlurmSearches) -> None:
    driver = on_slurm.run(trials=3, length=240)
    before = on_slurm.under_way()
    seen = time.time()
    saved = (
        on_slurm.cluster.directory / "state" / "job_state"
    )  # of jobs that are not in it a killed controller knows nothing
    on_slurm.wait_until(
        lambda: saved.exists() and saved.stat().st_mtime > seen, "Slurm to have saved its jobs", 60
    )
    on_slurm.cluster.kill("ctl")
    time.sleep(30.0)
    on_slurm.cluster.start("ctl")
    ended(driver)
    assert sorted(on_slurm.batches().values()) == [240, 240, 240]
    assert before.keys() < on_slurm.batches().keys()
    assert [len(runs) for runs in on_slurm.project.runs().values()] == [1, 1, 1]
    assert on_slurm.project.outcome(1).table == on_slurm.undisturbed(trials=3, length=240)


def test_a_job_that_somebody_cancels_saves_and_its_trial_goes_on(on_slurm: SlurmSearches) -> None:
    driver = on_slurm.run()
    on_slurm.under_way()
    job = min(on_slurm.cluster.jobs("running"))
    on_slurm.cluster.run("scancel", f"--name={job}")
    ended(driver)
    assert sum(on_slurm.batches().values()) == 80
    assert on_slurm.restarts() == [0, 0]
    assert on_slurm.project.outcome(1).table == on_slurm.undisturbed()


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


def started_script(
    searches: SlurmSearches, entrypoint: str, **engine: str
) -> subprocess.Popen[str]:
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


def test_script_behind_a_shell_saves_when_its_job_is_canceled(on_slurm: SlurmSearches) -> None:
    driver = started_script(on_slurm, "cd . && python3 train.py | tee log")
    on_slurm.wait_until(lambda: sum(on_slurm.batches().values()) > 5, "its first batches", 90)
    (job,) = on_slurm.cluster.jobs("running")
    on_slurm.cluster.run("scancel", f"--name={job}")
    ended(driver)
    # Each batch once.
    assert sum(on_slurm.batches().values()) == 100
    assert len(on_slurm.batches()) == 2
    assert on_slurm.restarts() == [0]


def test_script_at_its_time_limit_saves_and_goes_on(on_slurm: SlurmSearches) -> None:
    """Slurm ends the first job after a minute, and 5 s later kills what is left of it."""
    driver = started_script(on_slurm, "python3 train.py", time_limit="1")
    on_slurm.wait_until(lambda: "TIMEOUT" in str(on_slurm.cluster.jobs()), "the limit", 150)
    ended(driver)
    # Each batch once.
    assert sum(on_slurm.batches().values()) == 100
    assert len(on_slurm.batches()) == 2
    assert on_slurm.restarts() == [0]


class DriverJob:
    """Commands of det by the recipe of docs/guides/clusters.md.

    The driver is a job, and the home is where nodes see it.
    """

    def __init__(self, searches: SlurmSearches) -> None:
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


def test_driver_in_a_job_obeys_commands_and_resumes(on_slurm: SlurmSearches) -> None:
    """The driver lists, pauses, ends at its time limit and resumes, each in its own job."""
    driver = DriverJob(on_slurm)
    code = on_slurm.shared / "code"
    code.mkdir()
    (code / "model_def.py").write_text((on_slurm.project.det.cwd / "model_def.py").read_text())
    text = on_slurm.search(2, 60) + f"engine: {on_slurm.engine(0.1)}\n"
    (code / "search.yaml").write_text(on_slurm.project.write(text).read_text())

    job = driver.submit("run", code / "search.yaml", code, "--quiet")
    before = on_slurm.under_way()
    assert "ACTIVE" in driver.ask(job, "list")
    driver.ask(job, "pause", "1", to_its_end=False)
    on_slurm.wait_until(driver.over, "the end of the driver's job", 60)
    on_slurm.no_job_is_left()

    driver.submit("resume", "1", "--quiet")
    on_slurm.wait_until(
        lambda: len(on_slurm.batches().keys() - before.keys()) == 2, "runs of both trials", 90
    )
    on_slurm.cluster.run(
        "scancel", "--batch", "--signal=TERM", "-n", "driver"
    )  # as at the job's time limit
    on_slurm.wait_until(driver.over, "the end of the driver's job", 60)

    driver.submit("resume", "1", "--quiet")
    on_slurm.wait_until(driver.over, "the end of the search", 150)
    assert sum(on_slurm.batches().values()) == 2 * 60, (on_slurm.shared / "driver.log").read_text()
    on_slurm.project.det.home = driver.home
    assert on_slurm.project.outcome(1).table == on_slurm.undisturbed(2, 60)

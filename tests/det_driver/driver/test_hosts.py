"""Trials on other machines.

What cables, agents and drivers do there costs no training, and no run has two processes at once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clusters.hosts import Network, joined, processes, why_no_network

why_not = why_no_network()
pytestmark = pytest.mark.skipif(bool(why_not), reason=why_not)


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """Three hosts, if no test asks for more; the driver is on the first."""
    with joined(getattr(request, "param", 3)) as network:
        yield network


def test_trials_train_on_other_hosts_as_they_do_here(hosts, project):
    driver = hosts.search()
    hosts.under_way()
    assert sorted(hosts.agents()) == sorted(hosts.network.names[1:])
    hosts.ended(driver)
    assert hosts.agents() == {}
    assert not list(Path(hosts.variables["HOME"]).glob(".cache/det/agents/*"))
    assert project.outcome(1).table == hosts.undisturbed()


def test_why_a_trial_failed_there_is_read_here(hosts, project):
    path = hosts.write(hosts.text(trials=1, length=4), hosts.network.names[1:2])
    path.write_text(path.read_text().replace("  lr:", "  fate: {type: const, val: error}\n  lr:"))
    driver = hosts.start("run", path)
    said, _ = driver.communicate(timeout=60)
    assert driver.returncode == 1, said
    (log,) = hosts.home.glob("experiments/1/trials/*/run-1/rank-0.log")
    assert "RuntimeError: an error of the trial's" in log.read_text()


LOGS_MEDIA = """
import sys
import time
from pathlib import Path

from det_core import core

with core.init() as context:
    context.log_text("said", "first", 1)
    context.log_table("parts/table", {"x": [1, 2]}, 1)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.1)
    context.log_text("said", "then", 1)
    context.log_text("said", "last", 2)
"""


@pytest.mark.thorough
def test_media_of_another_host_arrive_while_the_trial_runs(hosts, project):
    """The last files are logged in the moment in which the run ends."""
    goes_on = hosts.home.parent / "goes-on"
    (project.det.cwd / "logs.py").write_text(LOGS_MEDIA)
    path = hosts.write("searcher: {name: single, metric: x}\n", hosts.network.names[1:2])
    path.write_text(path.read_text().replace("model_def:Trial", f"python3 logs.py {goes_on}"))
    driver = hosts.start("run", path, DET_LEASE="40")
    media = hosts.home / "experiments/1/tensorboard/trial-1/media"
    hosts.wait_until((media / "parts%2Ftable/1.json").exists, "what it has logged", 60)
    assert (media / "said/1.txt").read_text() == "first"
    driver.kill()
    driver.wait()
    goes_on.touch()
    hosts.ended(hosts.start("resume", "1", DET_LEASE="40"))
    assert {file.name: file.read_text() for file in (media / "said").iterdir()} == {
        "1.txt": "then",
        "2.txt": "last",
    }


@pytest.mark.thorough
def test_a_host_that_cannot_be_reached_at_all_is_named(hosts, project):
    driver = hosts.run(hosts.text(trials=1, length=4), ["10.9.8.7"])
    said, _ = driver.communicate(timeout=60)
    assert driver.returncode == 2
    assert "no agent could be started; the last one's words:" in said
    assert '10.9.8.7": No such file or directory' in said


@pytest.mark.thorough
def test_outage_shorter_than_the_lease_costs_nothing(hosts, project):
    driver = hosts.search(DET_LEASE="30")
    before = hosts.under_way()
    hosts.network.cut(hosts.network.names[1])
    time.sleep(5.0)
    hosts.network.mend(hosts.network.names[1])
    hosts.ended(driver)
    assert hosts.batches() == dict.fromkeys(before, 40)  # the same processes, each batch once
    assert [[run.number for run in runs] for runs in project.runs().values()] == [[1], [1]]
    assert project.outcome(1).table == hosts.undisturbed()


@pytest.mark.thorough
def test_cut_off_host_ends_its_run_before_another_resumes_it(hosts, project):
    driver = hosts.search()
    before = hosts.under_way(12)
    cut_at = time.time()
    hosts.network.cut(hosts.network.names[1])
    hosts.wait_until(
        lambda: len(hosts.batches()) == 3, "a run on the other host", hosts.lease + 3.0 + 5.0 + 8.0
    )
    (new,) = hosts.batches().keys() - before.keys()
    began = time.time()
    assert (
        began - cut_at < hosts.lease + 3.0 + 5.0 + 3.0
    )  # the last is for the beginning of a process under load
    ends = {pid: (hosts.home / f"batches-of-{pid}").stat().st_mtime for pid in before}
    assert min(ends.values()) < (hosts.home / f"batches-of-{new}").stat().st_mtime
    hosts.ended(driver)
    lost = [runs for runs in project.runs().values() if len(runs) == 2]
    assert len(lost) == 1
    assert [trial.restarts for trial in project.outcome(1).trials] == [0, 0]
    assert project.outcome(1).table == hosts.undisturbed()


def training(hosts) -> list[int]:
    """Return the workers that run. Each host has one slot."""
    found = [pid for pid in hosts.batches() if Path(f"/proc/{pid}/stat").exists()]
    assert len(found) <= 2, "a slot has two runs"
    return found


def test_experiments_share_hosts_by_priority(hosts, project):
    usual = hosts.search()
    hosts.under_way()
    text = hosts.text(trials=1, length=4) + "resources: {priority: 1}\n"
    urgent = hosts.run(text, hosts.network.names[1:])
    hosts.wait_until(
        lambda: len(training(hosts)) <= 2 and urgent.poll() is not None, "the urgent one", 60
    )
    assert urgent.returncode == 0, urgent.communicate()
    hosts.ended(usual)
    assert sorted(len(runs) for runs in project.runs(1).values()) == [1, 2]
    assert [trial.batches for trial in project.outcome(2).trials] == [4]
    text = hosts.text()
    project.det("run", project.write(text, "local.yaml"), "--quiet", env=project.environ())
    assert project.outcome(1).table == project.outcome(3).table


def test_hosts_of_a_killed_driver_are_free_when_its_runs_end(hosts, project):
    usual = hosts.search(length=1000)
    before = hosts.under_way()
    other = hosts.run(hosts.text(length=4), hosts.network.names[1:])
    hosts.wait_until(
        lambda: '"waiting"' in project.det("queue", "--json").stdout, "that the other one waits", 60
    )
    usual.kill()
    usual.wait()
    hosts.wait_until(
        lambda: len(training(hosts)) <= 2 and other.poll() is not None, "the other one", 60
    )
    assert other.returncode == 0, other.communicate()
    assert not {*before} & {*training(hosts)}
    assert [trial.batches for trial in project.outcome(2).trials] == [4, 4]


@pytest.mark.thorough
def test_killed_driver_costs_no_training_on_other_hosts(hosts, project):
    driver = hosts.search(DET_LEASE="40")
    before = hosts.under_way()
    driver.kill()
    driver.wait()
    hosts.ended(hosts.start("resume", "1", DET_LEASE="40"))
    assert hosts.batches() == dict.fromkeys(before, 40)
    assert [[run.number for run in runs] for runs in project.runs().values()] == [[1], [1]]
    assert hosts.agents() == {}
    assert project.outcome(1).table == hosts.undisturbed()


@pytest.mark.thorough
@pytest.mark.parametrize("network", [4], indirect=True)
def test_driver_on_another_machine_takes_over_what_trains(hosts, project):
    """It has another name, and the agents know only the address of the first one."""
    *_, first, second, another = hosts.network.names
    driver = hosts.run(hosts.text(), [first, second], DET_LEASE="40")
    before = hosts.under_way()
    driver.kill()
    driver.wait()
    hosts.ended(hosts.start("resume", "1", host=another, DET_LEASE="40"))
    assert hosts.batches() == dict.fromkeys(before, 40)
    assert [[run.number for run in runs] for runs in project.runs().values()] == [[1], [1]]
    assert hosts.agents() == {}
    assert [processes(host) for host in (first, second)] == [[], []]
    assert not list(Path(hosts.variables["HOME"]).glob(".cache/det/agents/*"))
    assert project.outcome(1).table == hosts.undisturbed()


@pytest.mark.thorough
@pytest.mark.parametrize("network", [4], indirect=True)
def test_runs_end_by_a_command_on_another_machine(hosts, project):
    """Their lease is not waited for."""
    *_, first, second, another = hosts.network.names
    driver = hosts.run(hosts.text(length=1000), [first, second], DET_LEASE="600")
    hosts.under_way()
    driver.kill()
    driver.wait()
    hosts.ended(hosts.start("cancel", "--now", "1", host=another))
    assert hosts.agents() == {}
    assert [processes(host) for host in (first, second)] == [[], []]
    assert [str(trial.state) for trial in project.outcome(1).trials] == ["CANCELED"] * 2


@pytest.mark.thorough
def test_lease_that_ends_before_a_save_uses_no_restart(hosts, project):
    driver = hosts.search(DET_LEASE="6", PAUSE="8")
    hosts.wait_until(lambda: len(hosts.batches()) == 2, "both trials", 60)
    driver.kill()
    driver.wait()
    hosts.wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in hosts.batches()),
        "the end of the lease",
        20,
    )
    resumed = hosts.start("resume", "1", DET_LEASE="60")
    hosts.wait_until(lambda: len(hosts.batches()) == 4, "their next runs", 60)
    assert [trial.restarts for trial in project.outcome(1).trials] == [
        0,
        0,
    ]  # of which they have none
    resumed.terminate()
    resumed.wait(60)


def test_trial_of_a_killed_agent_resumes_from_its_checkpoint(hosts, project):
    driver = hosts.search()
    hosts.under_way(12)
    os.kill(hosts.agents()[hosts.network.names[1]], signal.SIGKILL)
    hosts.ended(driver)
    assert sorted(len(runs) for runs in project.runs().values()) == [1, 2]
    assert [trial.restarts for trial in project.outcome(1).trials] == [0, 0]
    assert project.outcome(1).table == hosts.undisturbed()


@pytest.mark.thorough
def test_a_host_that_is_taken_away_saves_and_another_goes_on(hosts, project):
    driver = hosts.search()
    hosts.under_way()
    os.kill(hosts.agents()[hosts.network.names[1]], signal.SIGTERM)
    hosts.ended(driver)
    assert sum(hosts.batches().values()) == 80  # each batch once: it saved where it was
    assert [trial.restarts for trial in project.outcome(1).trials] == [0, 0]
    assert project.outcome(1).table == hosts.undisturbed()

"""A trial whose ranks are on several machines, as none is large enough.

It trains, is lost, is taken over and goes on as one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.support.clusters.hosts import Network, joined, why_no_network

why_not = why_no_network()
pytestmark = pytest.mark.skipif(bool(why_not), reason=why_not)
TRIAL = """
searcher: {name: single, metric: val_loss, max_length: {batches: 40}}
min_validation_period: {batches: 13}
min_checkpoint_period: {batches: 10}
resources: {slots_per_trial: 2}
"""


@pytest.fixture
def network() -> Iterator[Network]:
    """Four hosts of one slot each; the driver is on the first."""
    with joined(4) as network:
        yield network


@pytest.fixture
def here(project):
    """The metrics of the same trial on two slots of this machine."""

    def train() -> dict:
        project.det("run", project.write(TRIAL, "local.yaml"), "--quiet", env=project.environ(2))
        return list(project.outcome(2).metrics.values())

    return train


def metrics(project):
    return list(project.outcome(1).metrics.values())


def test_multi_machine_trial_trains_as_on_one_machine(hosts, project, here):
    driver = hosts.run(TRIAL, hosts.network.names[1:3])
    hosts.under_way()
    assert sorted(hosts.agents()) == sorted(hosts.network.names[1:3])
    hosts.ended(driver)
    assert list(hosts.batches().values()) == [40, 40]
    assert metrics(project) == here()


@pytest.mark.thorough
@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_lost_machine_ends_the_other_ranks_and_the_trial_resumes(hosts, project, here, which):
    """The next run is on the machines that are left."""
    driver = hosts.run(TRIAL, hosts.network.names[1:])
    hosts.under_way(12)
    host, _ = hosts.ranks()[which]
    hosts.network.cut(host)
    hosts.ended(driver)
    assert metrics(project) == here()
    ((first, second),) = project.runs().values()
    assert (first.number, second.number) == (1, 2)
    assert [trial.restarts for trial in project.outcome(1).trials] == [0]


@pytest.mark.thorough
def test_a_killed_driver_costs_no_training_on_any_of_them(hosts, project, here):
    driver = hosts.run(TRIAL, hosts.network.names[1:3], DET_LEASE="40")
    before = hosts.under_way()
    driver.kill()
    driver.wait()
    hosts.ended(hosts.start("resume", "1", DET_LEASE="40"))
    assert hosts.batches() == dict.fromkeys(before, 40)
    assert metrics(project) == here()


@pytest.mark.thorough
def test_a_rank_that_is_killed_ends_the_others_and_is_named(hosts, project, here):
    path = hosts.write(TRIAL, hosts.network.names[1:3])
    path.write_text(path.read_text().replace("max_restarts: 0", "max_restarts: 1"))
    driver = hosts.start("run", path)
    hosts.under_way(12)
    _, pid = hosts.ranks()[1]
    os.kill(pid, signal.SIGKILL)
    hosts.ended(driver)
    assert metrics(project) == here()
    assert [trial.restarts for trial in project.outcome(1).trials] == [1]
    ((first, _),) = project.runs().values()
    assert "rank 1 was killed by SIGKILL" in first.reason


@pytest.mark.thorough
def test_pause_reaches_all_machines_and_the_trial_resumes(hosts, project, here):
    driver = hosts.run(TRIAL, hosts.network.names[1:3])
    hosts.under_way()
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=100)
    assert driver.returncode == 130
    hosts.ended(hosts.start("resume", "1"))
    assert metrics(project) == here()
    assert sum(hosts.batches().values()) == 80

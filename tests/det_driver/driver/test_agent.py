"""A driver may be killed and replaced while training goes on.

Its runs are an agent's, which keeps what they say.
"""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from det_driver.store import Store
from det_node.agent import NOTE, find
from det_node.process import is_running, noted_processes

SEARCH = (
    "searcher: {name: random, metric: val_loss, max_trials: 2, max_length: 40,"
    " max_concurrent_trials: 2}\nmin_validation_period: 13\nmin_checkpoint_period: 25\n"
)
SLOW = {"PAUSE": "0.1"}


def begun(home: Path) -> dict[str, int]:
    """Return how many batches each worker has begun, by its process."""
    return {
        path.name.rpartition("-")[2]: len(path.read_text()) for path in home.glob("batches-of-*")
    }


def agent_of(home: Path) -> int:
    """Return the process of the agent of the first experiment; 0 where there is none."""
    note = find(home / "experiments" / "1" / "agents" / NOTE)
    return note["pid"] if note else 0


@pytest.fixture
def under_way(project, wait_until):
    """Start a search of two trials that train side by side.

    Return its driver when both have begun their sixth batch.
    """

    def start(text: str = SEARCH, **env: str):
        driver = project.det.start(
            "run", project.write(text), "--quiet", env=project.environ(2, {**SLOW, **env})
        )
        wait_until(
            lambda: sum(n > 5 for n in begun(project.det.home).values()) == 2,
            "six batches of each trial",
        )
        return driver

    return start


@pytest.fixture
def undisturbed(project):
    """The table of the search that nothing happens to."""

    def table() -> list:
        project.det("run", project.write(SEARCH), "--quiet", env=project.environ())
        return project.outcome(2).table

    return table


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_a_killed_driver_costs_no_training(project, under_way, undisturbed, wait_until):
    driver = under_way(DET_LEASE="60")
    driver.kill()
    driver.wait()
    workers = begun(project.det.home)
    wait_until(
        lambda: min(begun(project.det.home).values()) >= min(workers.values()) + 1,
        "training without a driver",
    )
    said = project.det("resume", "1", "--quiet", env=project.environ()).stderr
    assert "run 1 of trial 1 goes on, as it did without a driver" in said
    assert begun(project.det.home) == dict.fromkeys(
        workers, 40
    )  # the same processes, each batch once
    assert [[run.number for run in runs] for runs in project.runs().values()] == [[1], [1]]
    assert agent_of(project.det.home) == 0
    assert project.outcome().table == undisturbed()


SLOW_TO_CLOSE = """

    from det_testing import fakes

    def close(self, close=fakes.OwnedAdapter.close):
        close(self)
        home = os.environ["DET_HOME"]
        open(f"{home}/closing-{os.getpid()}", "w").close()
        while not os.path.exists(f"{home}/close"):
            time.sleep(0.05)

    fakes.OwnedAdapter.close = close
"""


@pytest.mark.thorough
def test_run_that_ends_without_a_driver_is_not_trained_again(project, undisturbed, wait_until):
    home, model = project.det.home, project.det.cwd / "model_def.py"
    plain = model.read_text()
    model.write_text(plain + textwrap.dedent(SLOW_TO_CLOSE))
    driver = project.det.start(
        "run",
        project.write(SEARCH),
        "--quiet",
        env=project.environ(2, {"PAUSE": "0.01", "DET_LEASE": "60"}),
    )
    wait_until(lambda: len(list(home.glob("closing-*"))) == 2, "the last checkpoint of each")
    workers = [int(path.name.rpartition("-")[2]) for path in home.glob("closing-*")]
    driver.kill()
    driver.wait()
    (home / "close").touch()
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers),
        "their end without a driver",
    )
    project.det("resume", "1", "--quiet", env=project.environ())
    assert sorted(begun(home).values()) == [40, 40]
    assert [[run.number for run in runs] for runs in project.runs().values()] == [[1], [1]]
    assert [(str(trial.state), trial.restarts) for trial in project.outcome().trials] == [
        ("COMPLETED", 0)
    ] * 2
    model.write_text(plain)
    assert project.outcome().table == undisturbed()


@pytest.mark.thorough
def test_drivers_killed_one_after_the_other_lose_nothing(project, under_way, undisturbed):
    driver = under_way(DET_LEASE="60", PAUSE="0.3")
    for _ in range(4):
        driver.kill()
        driver.wait()
        driver = project.det.start(
            "resume", "1", "--quiet", env=project.environ(2, {"DET_LEASE": "60"})
        )
        with pytest.raises(Exception, match="timed out"):
            driver.wait(timeout=1.0)
    driver.kill()
    driver.wait()
    project.det("resume", "1", "--quiet", env=project.environ())
    assert list(begun(project.det.home).values()) == [40, 40]
    assert project.outcome().table == undisturbed()


@pytest.mark.thorough
def test_runs_save_and_exit_when_the_lease_ends_without_a_driver(
    project, under_way, undisturbed, wait_until
):
    driver = under_way(DET_LEASE="0.5")
    agent = agent_of(project.det.home)
    driver.kill()
    driver.wait()
    wait_until(lambda: not Path(f"/proc/{agent}").exists(), "the end of the agent")
    before = begun(project.det.home)
    assert len(list(project.det.home.glob("experiments/1/spool/*.json"))) == 2
    with Store.reader(project.det.home) as store:
        noted = [
            noted_processes(run.log_dir)
            for trial in store.trials.list(1)
            for run in store.runs.list(trial.id)
        ]
    assert not [pid for processes in noted for pid, birth in processes if is_running(pid, birth)]
    project.det("resume", "1", "--quiet", env=project.environ())
    first = {runs[1].first_batch for runs in project.runs().values()}
    assert first == set(before.values())  # each batch once
    assert project.outcome().table == undisturbed()


def test_runs_of_a_killed_agent_save_and_resume_under_another(
    project, under_way, undisturbed, wait_until
):
    driver = under_way()
    agent = agent_of(project.det.home)
    kill(agent)
    wait_until(lambda: agent_of(project.det.home) not in (0, agent), "another agent")
    assert driver.wait(timeout=100) == 0
    found = project.outcome()
    assert [trial.restarts for trial in found.trials] == [0, 0]
    assert sum(begun(project.det.home).values()) == 80  # each batch once
    assert found.table == undisturbed()


@pytest.mark.sample
@pytest.mark.parametrize(("command", "state"), [("pause", "PAUSED"), ("cancel --now", "CANCELED")])
def test_what_nobody_drives_can_be_asked_to_end(project, under_way, wait_until, command, state):
    driver = under_way(DET_LEASE="600")
    agent = agent_of(project.det.home)
    driver.kill()
    driver.wait()
    project.det(*command.split(), "1")
    wait_until(lambda: not Path(f"/proc/{agent}").exists(), "the end of the agent", 20)
    with Store.reader(project.det.home) as store:
        assert str(store.experiments.get(1).state) == state
    assert len(list(project.det.home.glob("experiments/1/spool/*.json"))) == (
        2 if command == "pause" else 0
    )


@pytest.mark.thorough
def test_devices_stay_leased_to_what_trains_without_a_driver(project, under_way, wait_until):
    driver = under_way(DET_LEASE="600")
    driver.kill()
    driver.wait()
    other = project.det.start(
        "run", project.write(SEARCH, "other.yaml"), "--quiet", env=project.environ(2)
    )
    wait_until(
        lambda: project.det.home.joinpath("experiments/2/experiment.db").exists(),
        "the other experiment",
    )
    with pytest.raises(Exception, match="timed out"):
        other.wait(timeout=3)
    with Store.reader(project.det.home) as store:
        assert not [trial for trial in store.trials.list(2) if trial.runs]
    project.det("rm", "1", "--yes")
    assert other.wait(timeout=100) == 0


def test_its_secret_is_for_its_owner_only_and_on_no_command_line(project, under_way):
    driver = under_way()
    secret = project.det.home / "experiments" / "1" / "agents" / "secret"
    assert oct(secret.stat().st_mode & 0o777) == "0o600"
    assert len(bytes.fromhex(secret.read_text())) == 32
    agent = Path(f"/proc/{agent_of(project.det.home)}")
    assert oct(secret.parent.stat().st_mode & 0o777) == "0o700"
    for place in ("cmdline", "environ"):
        assert secret.read_bytes() not in (agent / place).read_bytes()
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=60) == 130
    assert agent_of(project.det.home) == 0


def test_an_agent_is_started_before_the_first_decision(project, tmp_path):
    """Here there is none before it runs.

    What it takes to start one passes while the driver gets ready.
    """
    context = tmp_path / "site"
    (context / "early_hooks.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from det_core import hookimpl\n"
        "@hookimpl\n"
        "def det_experiment_started(experiment):\n"
        "    until = time.monotonic() + 60\n"
        f"    while not (Path(experiment.directory) / 'agents' / {NOTE!r}).exists():\n"
        "        assert time.monotonic() < until\n"
        "        time.sleep(0.01)\n"
        "    Path(__file__ + '.met').touch()\n"
    )
    points = context / "fakes-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "early = early_hooks\n")
    project.run(SEARCH).check()
    assert (context / "early_hooks.py.met").exists()

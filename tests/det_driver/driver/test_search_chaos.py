"""Searches whose drivers and workers are killed at random moments.

A sample runs by default; `--kills=20` (`nox -s chaos`) is the campaign.
The seed of the moments is printed, and DET_CHAOS_SEED repeats it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from itertools import pairwise

import pytest

from det_driver.store import ExperimentState, Store
from det_node.process import process_identity
from det_testing import OneVar

PAUSE = {"PAUSE": "0.004"}
ASHA = (
    "searcher: {{name: adaptive_asha, metric: val_loss, max_trials: {trials}, max_length: 32,"
    " divisor: 2, max_rungs: 3, max_concurrent_trials: 4}}\nmin_checkpoint_period:"
    " 3\nmin_validation_period: 5\n"
)


@pytest.fixture
def kills(pytestconfig):
    return pytestconfig.getoption("kills")


@pytest.fixture
def search(kills):
    """A search long enough to be killed so many times: 60 trials for 20 kills."""
    return ASHA.format(trials=max(8, 3 * kills))


@pytest.fixture
def chance():
    seed = int(os.environ.get("DET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"DET_CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def watched(project, tmp_path):
    """The project, with a trial that notices another process that is the same trial."""
    locks = tmp_path / "locks"
    locks.mkdir()
    model = project.det.cwd / "model_def.py"
    model.write_text(
        model.read_text()
        + "\n\nimport fcntl, pathlib\n"
        + "class Watched(Trial):\n"
        + "    def build_model(self):\n"
        + "        locks = pathlib.Path(os.environ['LOCKS'])\n"
        + "        self.held = (locks / str(self.run.trial_id)).open('w')\n"
        + "        try:\n"
        + "            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        + "        except BlockingIOError:\n"
        + "            (locks / f'twice-{self.run.trial_id}').touch()\n"
        + "        return super().build_model()\n"
    )
    project.env["LOCKS"] = str(locks)
    yield project
    assert not list(locks.glob("twice-*"))


def killed_drivers(project, text, kills, slots, chance):
    """Run a search whose driver is killed so many times; return its outcome."""
    path = project.write(text)
    path.write_text(path.read_text().replace("model_def:Trial", "model_def:Watched"))
    env = project.environ(slots, PAUSE)
    command = ["run", path, "--quiet"]
    for _ in range(kills):
        # An agent whose driver is killed when all has ended waits for another as long as its lease.
        driver = project.det.start(*command, env={**env, "DET_LEASE": chance.choice(["0", "8"])})
        time.sleep(chance.uniform(0.2, 1.5))
        driver.kill()
        driver.wait()
        if state(project) is not None:
            command = ["resume", "1", "--quiet"]
        else:  # it had promised nothing, but may have taken the number 1
            shutil.rmtree(project.det.home, ignore_errors=True)
    project.det(*command, env=env, status=2 if state(project) is ExperimentState.COMPLETED else 0)
    return project.outcome()


def state(project):
    """Return the state of the first experiment, None where there is none yet."""
    if not project.det.home.joinpath("experiments/1/experiment.db").exists():
        return None
    with Store.reader(project.det.home) as store:
        listed = store.experiments.list()
        return listed[0].experiment.state if listed else None


def undisturbed(project, text, slots):
    project.det.home = project.det.home.with_name("undisturbed")
    return project.run(text, slots=slots)


def check_numbers(found):
    """Each trial's numbers are those of an undisturbed one, without a gap and without a repeat."""
    for trial in found.trials:
        model = OneVar(lr=trial.hparams["lr"])
        reports = [
            (at, value) for group, at, value in found.metrics[trial.id] if group == "validation"
        ]
        assert [at for at, _ in reports] == sorted({at for at, _ in reports})
        assert set(range(5, trial.batches, 5)) <= {at for at, _ in reports}
        for at, value in reports:
            assert value == pytest.approx(model.validation_loss(at), rel=1e-9)


@pytest.mark.thorough
def test_killed_drivers_do_not_change_a_serial_search(watched, search, kills, chance):
    """The table of results is that of a search that ran undisturbed."""
    found = killed_drivers(watched, search, kills, 1, chance)
    found.check()
    assert found.table == undisturbed(watched, search, 1).table


@pytest.mark.thorough
def test_killed_drivers_lose_nothing_in_a_parallel_search(watched, search, kills, chance):
    """The decisions are those that the order of the journal implies."""
    found = killed_drivers(watched, search, kills, 3, chance)
    found.check()
    check_numbers(found)
    for runs in watched.runs().values():
        for before, after in pairwise(runs):
            assert before.ended is not None
            assert before.ended <= after.started


@pytest.mark.thorough
def test_killed_workers_restart_and_do_not_change_the_results(watched, search, kills, chance):
    path = watched.write(search)
    driver = watched.det.start(
        "run", path, "--quiet", "-c", "max_restarts=1000", env=watched.environ(1, PAUSE)
    )
    left = kills
    while driver.poll() is None and left:
        time.sleep(chance.uniform(0.1, 0.6))
        left -= kill_a_worker(watched.det.home, chance)
    assert driver.wait(timeout=120) == 0
    found = watched.outcome()
    found.check()
    assert sum(trial.restarts for trial in found.trials) >= 1
    assert found.table == undisturbed(watched, search, 1).table


def kill_a_worker(home, chance) -> bool:
    """Kill the process of one of the runs that have not ended."""
    pids = []
    if home.joinpath("experiments/1/experiment.db").exists():
        with Store.reader(home) as store:
            runs = [
                r
                for t in store.trials.list(1)
                if not t.state.ended
                for r in store.runs.list(t.id)
                if not r.ended
            ]
        for run in runs:
            note = run.log_dir / "process.json"
            noted = json.loads(note.read_text() or "{}") if note.exists() else {}
            if noted and process_identity(noted["pid"]) == noted["born"]:
                pids.append(noted["pid"])
    if not pids:
        return False
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True

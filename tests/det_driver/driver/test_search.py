"""Searches: what the driver makes of its searcher's wishes, with every end of a trial."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from det_driver.store import ExperimentState, Store, TrialState

pytestmark = pytest.mark.process

FATES = "  fate: {type: categorical, vals: [good, good, invalid, error, nan]}\n"
SEARCHERS = {
    "random": (
        "{name: random, metric: val_loss, max_trials: 7, max_length: 4, max_concurrent_trials: 3}"
    ),
    "grid": "{name: grid, metric: val_loss, max_length: 4}",
    "promotion": (
        "{name: async_halving, metric: val_loss, num_rungs: 3, max_trials: 8, max_length: 16,"
        " divisor: 2, max_concurrent_trials: 3}"
    ),
    "stopping": (
        "{name: async_halving, metric: val_loss, num_rungs: 3, max_trials: 8, max_time: 16,"
        " divisor: 2, time_metric: batches, max_concurrent_trials: 3}"
    ),
    "adaptive": (
        "{name: adaptive_asha, metric: val_loss, max_trials: 8, max_length: 16, divisor: 2}"
    ),
    "hyperband": "{name: hyperband, metric: val_loss, max_length: 4, divisor: 2}",
    "pbt": (
        "{name: pbt, metric: val_loss, population_size: 5, num_rounds: 3, length_per_round: 4,"
        " replace_function: {truncate_fraction: 0.4}}"
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SEARCHERS)
def test_every_searcher_ends_despite_all_kinds_of_failures(project, name):
    fates = FATES.replace("good, good", "good") if name == "grid" else FATES
    period = "\nmin_validation_period: 4\n" if name == "stopping" else "\n"
    found = project.run(f"{fates}searcher: {SEARCHERS[name]}{period}", status=0)
    found.check()
    ends = {"good": "COMPLETED", "nan": "COMPLETED", "error": "ERROR", "invalid": "INVALID_HP"}
    for trial in found.trials:
        plan = found.search.plans[trial.request]
        # A trial that its searcher closed before it had run knows nothing of its fate.
        assert str(trial.state) == ends[trial.hparams["fate"]] or (plan.closed and trial.runs == 0)
        assert not (trial.hparams["fate"] == "nan" and trial.best_metric is not None)
    assert any(trial.best_metric is not None for trial in found.trials)


def test_promoted_trial_resumes_and_holds_no_slot_while_waiting(project):
    found = project.run(f"searcher: {SEARCHERS['promotion']}\n", slots=1)
    found.check()
    runs = project.runs()
    longest = max(found.trials, key=lambda trial: trial.batches)
    assert longest.batches == 16
    starts = [run.first_batch for run in runs[longest.request]]
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    for trial in found.trials:
        batches = [at for group, at, _ in found.metrics[trial.id] if group == "validation"]
        assert batches == sorted(set(batches))
        assert max(batches) == trial.batches
    # With one slot, no two runs overlap: a trial that waits has no process.
    spans = sorted((run.started, run.ended) for each in runs.values() for run in each)
    assert all(ended <= after for (_, ended), (after, _) in pairwise(spans))


@pytest.mark.end_to_end
def test_trials_match_the_formula_despite_interruptions(project):
    from det_testing import OneVar

    found = project.run(f"searcher: {SEARCHERS['promotion']}\n")
    for trial in found.trials:
        model = OneVar(lr=trial.hparams["lr"])
        for group, batches, value in found.metrics[trial.id]:
            if group == "validation":
                assert value == pytest.approx(model.validation_loss(batches), rel=1e-9)


def test_pbt_copies_start_from_the_checkpoints_of_their_sources(project):
    found = project.run(f"searcher: {SEARCHERS['pbt']}\n")
    found.check()
    copies = [plan for plan in found.search.plans.values() if plan.source is not None]
    assert len(copies) == 4
    with Store.reader(project.det.home) as store:
        for plan in copies:
            source = found.by_request[plan.source]
            saved = store.checkpoints.get(found.by_request[plan.request].source_checkpoint)
            assert saved.trial_id == source.id
            assert saved.batches % 4 == 0
            first = next(
                value
                for group, at, value in found.metrics[found.by_request[plan.request].id]
                if group == "validation"
            )
            # A copy begins where its source was, so that it is better after one round than any
            # beginner.
            assert first < saved.metric


def test_parallel_trials_use_all_slots_up_to_the_searcher_limit(project):
    search = (
        "searcher: {name: random, metric: val_loss, max_trials: 6, max_length: 10,"
        " max_concurrent_trials: 2}\n"
    )
    project.run(search, slots=4, env={"PAUSE": "0.02"})
    spans = [(run.started, run.ended) for each in project.runs().values() for run in each]
    at_once = [sum(start <= moment < end for start, end in spans) for moment, _ in spans]
    assert max(at_once) == 2
    assert len(spans) == 6


def test_trial_of_several_slots_holds_them_all_while_others_wait(project):
    search = (
        "searcher: {name: random, metric: val_loss, max_trials: 3}\nresources: {slots_per_trial:"
        " 2}\n"
    )
    path = project.write(search)
    path.write_text(
        path.read_text().replace("entrypoint: model_def:Trial", "entrypoint: sleep 0.2")
    )
    # These scripts report nothing by which they could be ranked.
    project.det("run", path, "--quiet", env=project.environ(slots=3), status=2)
    spans = sorted((run.started, run.ended) for each in project.runs().values() for run in each)
    assert len(spans) == 3
    assert all(ended <= after for (_, ended), (after, _) in pairwise(spans))


def test_paused_search_resumes_to_the_uninterrupted_numbers(project, running, wait_until):
    """A pause checkpoints every trial."""
    search = (
        "searcher: {name: random, metric: val_loss, max_trials: 3, max_length: 40,"
        " max_concurrent_trials: 2}\n"
    )
    driver = project.det.start(
        "run", project.write(search), env=project.environ(2, {"PAUSE": "0.02"})
    )
    wait_until(lambda: running() == 2, "two runs")
    os.kill(driver.pid, signal.SIGINT)
    assert driver.wait(timeout=30) == 130
    half = project.outcome()
    assert [str(t.state) for t in half.trials if not t.state.ended] == ["PAUSED", "PAUSED"]
    with Store.reader(project.det.home) as store:  # a resume has nothing to replay
        assert store.snapshots.read(1)[0].seq == len(half.events)
    project.det("resume", "1", "--quiet", env=project.environ(2))
    found = project.outcome()
    found.check()
    assert all(trial.batches == 40 for trial in found.trials)
    assert [len(runs) for runs in project.runs().values()] == [2, 2, 1]
    again = project.det.cwd.parent / "again"
    project.det.home = again
    assert project.run(search).table == found.table


def test_killed_worker_restarts_from_its_checkpoint(project, running, wait_until):
    search = (
        "searcher: {name: random, metric: val_loss, max_trials: 1, max_length:"
        " 30}\nmin_checkpoint_period: 5\n"
    )
    driver = project.det.start(
        "run",
        project.write(search),
        "-c",
        "max_restarts=2",
        env=project.environ(1, {"PAUSE": "0.02"}),
    )
    log_dir: list[Path] = []

    def saved() -> bool:
        if not running():
            return False
        with Store.reader(project.det.home) as store:
            log_dir[:] = [store.runs.list(1)[-1].log_dir]
            return bool(store.checkpoints.list(trial_id=1))

    wait_until(saved, "a checkpoint")
    os.kill(json.loads((log_dir[0] / "process.json").read_text())["pid"], signal.SIGKILL)
    assert driver.wait(timeout=30) == 0
    first, second = project.runs()[0]
    assert "SIGKILL" in first.outcome
    assert second.first_batch >= 5
    assert project.outcome().trials[0].restarts == 1


CLOCK = """
    from det_testing.fakes import OwnedOneVar, Weight

    class Clock(Weight):
        # Not trained: a quarter of a second passes with each batch.
        @property
        def value(self):
            return self.passed
        @value.setter
        def value(self, trained):
            self.passed = getattr(self, "passed", -0.25) + 0.25

    class Trial(OwnedOneVar):
        def build_model(self):
            return Clock()
"""


def test_trials_train_until_the_time_that_they_report_has_passed(project):
    project.det.cwd.joinpath("model_def.py").write_text(textwrap.dedent(CLOCK))
    lengths = "time_metric: weight, max_time: 8, max_trials: 2, divisor: 4, max_rungs: 1"
    found = project.run(
        f"searcher: {{name: adaptive_asha, metric: val_loss, {lengths}}}\nmin_validation_period:"
        " 10\n"
    )
    assert [(str(trial.state), trial.batches) for trial in found.trials] == [("COMPLETED", 40)] * 2


def test_a_search_ends_complete_when_its_time_is_over(project):
    """What runs then saves, and the journal says the same again."""
    pair = (
        "{sampler: sobol, schedule: async_halving, metric: val_loss, max_trials: 500, max_length:"
        " 900, max_hours: 0.001}"
    )
    found = project.run(f"searcher: {pair}\nmin_validation_period: 4\n", env={"PAUSE": "0.05"})
    found.check()
    assert found.search.searcher.stopped
    assert 0 < len(found.trials) < 500
    assert any(trial.state == "COMPLETED" and 0 < trial.batches < 900 for trial in found.trials)


def test_a_custom_searcher_is_the_users_own_class(project):
    project.det.cwd.joinpath("mine.py").write_text(
        "from det_driver.search import Close, Create, Searcher, Train\nclass Two(Searcher):\n   "
        " def __init__(self, config, hyperparameters, seed): self.done = 0\n    def start(self):"
        " return [op for t in (0, 1) for op in (Create(t, {'lr': 0.01 + t / 100}, t), Train(t,"
        " 5))]\n    def validated(self, trial, length, metrics): return [Close(trial)]\n    def"
        " exited(self, trial, reason): self.done += 1; return []\n    def progress(self,"
        " trial_progress): return self.done / 2\n    def state(self): return {'done': self.done}\n "
        "   def restore(self, state): self.done = state['done']\n"
    )
    project.det(
        "run",
        project.write("searcher: {name: custom, entrypoint: 'mine:Two', metric: val_loss}\n"),
        env=project.env,
    )
    with Store.reader(project.det.home) as store:
        trials = store.trials.list(1)
    assert [(t.hparams, t.batches, str(t.state)) for t in trials] == [
        ({"lr": 0.01}, 5, "COMPLETED"),
        ({"lr": 0.02}, 5, "COMPLETED"),
    ]


def test_unreported_metric_ends_the_trial_and_is_named(project):
    path = project.write(
        "searcher: {name: random, metric: accuracy, max_trials: 1, max_length: 2}\n"
    )
    done = project.det("run", path, "--quiet", status=2, env=project.env)
    assert "accuracy" in done.stderr
    assert not math.isnan(project.det.json("show", "1")["experiment"]["progress"])


def test_pause_reason_is_kept_when_no_page_can_be_written(tmp_path):
    """The log of its database may not grow, but begins again."""
    full = """
import os, resource, sys
from pathlib import Path
from det_core.errors import StoreUnwritable
from det_driver.driver._recover import note_pause
from det_driver.store import Store

with Store(Path(sys.argv[1])) as store:
    made = store.experiments.create(name="full", config="{}")
    with store.lock(made.id):
        for number in range(20):
            store.experiments.update(made.id, reason="x" * number)
        size = os.path.getsize(store.experiment_dir(made.id) / "experiment.db-wal")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            store.experiments.update(made.id, reason="not written")
        except StoreUnwritable as error:
            note_pause(store, made.id, f"because {error}")
"""
    subprocess.run([sys.executable, "-c", full, str(tmp_path)], check=True, timeout=60)
    with Store.reader(tmp_path) as store:
        found = store.experiments.get(1)
    assert found.state is ExperimentState.PAUSED
    assert found.reason.endswith(
        "the disk failed (disk I/O error); nothing of the last change was written"
    )


@pytest.mark.thorough
def test_unwritable_store_pauses_the_experiment_not_its_trials(project):
    """Files may not grow past a limit, as on a full disk."""
    path = project.write(
        "searcher: {name: random, metric: val_loss, max_trials: 40, max_length: 4}\n"
    )
    command = [
        "bash",
        "-c",
        'ulimit -f 700; exec "$@"',
        "bash",
        *project.det.argv(["run", path, "--quiet"]),
    ]
    env = project.det.env(project.environ())
    done = subprocess.run(
        command,
        cwd=project.det.cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130, done.stdout + done.stderr
    assert (
        str(project.det.home / "experiments" / "1" / "experiment.db")
        in done.stderr.splitlines()[-1]
    )
    assert done.stdout.splitlines()[-1] == "go on with: det resume 1"
    assert "because: " in project.det("show", "1").stdout
    with Store.reader(project.det.home) as store:
        assert not any(trial.state is TrialState.ERROR for trial in store.trials.list(1))
        assert any(trial.state is TrialState.COMPLETED for trial in store.trials.list(1))
    project.det("resume", "1", "--quiet", env=project.environ())
    found = project.outcome()
    found.check()
    assert {str(trial.state) for trial in found.trials} == {"COMPLETED"}

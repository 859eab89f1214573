"""What fails between a driver and what it works with costs at most that run.

It is tried again or waited for, and nothing else is lost.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from det_core import Plugins
from det_core.checkpoint.manifest import FileEntry, Manifest
from det_core.config import parse, to_json
from det_core.errors import StoreUnwritable
from det_core.train.run_setup import Spooled, encode_note
from det_driver.driver._garbage import collect_left, expect_garbage
from det_driver.driver._recover import record_spooled
from det_driver.store import CheckpointState, ExperimentState, Store
from det_node.process import is_running, noted_processes

SEARCH = (
    "searcher: {name: random, metric: val_loss, max_trials: %d, max_length: 40,"
    " max_concurrent_trials: 2}\n"
)


# Processes


@pytest.fixture
def two_under_way(project, wait_until):
    """A search whose two trials have runs under way that have saved at batch 5 and trained on.

    Its driver.
    """
    path = project.write(SEARCH % 2 + "min_checkpoint_period: 5\n")
    driver = project.det.start("run", path, "--quiet", env=project.environ(2, {"PAUSE": "0.2"}))
    wait_until(
        lambda: [n > 6 for n in begun(project.det.home)] == [True, True],
        "more than 6 batches of each trial",
    )
    return driver


def begun(home: Path) -> list[int]:
    """Return how many batches each worker has begun."""
    return sorted(len(path.read_text()) for path in home.glob("batches-of-*"))


def processes(home: Path) -> list[int]:
    """Return every process of a home's experiments: driver, fork server and workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"DET_HOME={home}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_sigterm_to_every_process_of_a_job_saves_every_trial(project, two_under_way):
    """As `scancel`, `systemctl stop` and the end of a container send it."""
    for pid in processes(project.det.home):
        os.kill(pid, signal.SIGTERM)
    assert two_under_way.wait(timeout=60) == 130
    with Store.reader(project.det.home) as store:
        before = store.trials.list(1)
        assert [str(trial.state) for trial in before] == ["PAUSED", "PAUSED"]
        saved = [store.checkpoints.get(trial.latest_checkpoint).batches for trial in before]
    assert sorted(saved) == begun(project.det.home)
    project.det("resume", "1", "--quiet", env=project.environ())
    with Store.reader(project.det.home) as store:
        runs = [store.runs.list(trial.id) for trial in store.trials.list(1)]
    assert [[run.first_batch for run in each] for each in runs] == [
        [0, batches] for batches in saved
    ]


CUSTOM = """
    from det_driver.search import TrialFactory, Close, Searcher

    class Picky(Searcher):
        def __init__(self, config, hyperparameters, seed):
            self.factory = TrialFactory(hyperparameters, seed)

        def start(self):
            return self.factory.start(3, 4)

        def validated(self, trial, length, metrics):
            if trial == 1:
                raise ZeroDivisionError("not this one")
            return [Close(trial)]

        def exited(self, trial, reason):
            return []

        def progress(self, trial_progress):
            return 0.5
"""


def test_message_that_breaks_the_searcher_fails_only_its_run(project):
    (project.det.cwd / "picky.py").write_text(textwrap.dedent(CUSTOM))
    path = project.write("searcher: {name: custom, metric: val_loss, entrypoint: 'picky:Picky'}\n")
    done = project.det("run", path, "--quiet", env=project.environ())
    assert "trial 2: ZeroDivisionError: not this one" in done.stderr
    assert "because: trial 2: ZeroDivisionError: not this one\n" in project.det("show", "1").stdout
    with Store.reader(project.det.home) as store:
        assert [str(trial.state) for trial in store.trials.list(1)] == [
            "COMPLETED",
            "ERROR",
            "COMPLETED",
        ]


SCRIPT = (
    "python3 -c 'from det_core import core; run = core.init(); "
    "run.train.report_validation_metrics(1, dict(val_loss=0.0)); run.__exit__(None, None, None)'"
)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("entrypoint", "variables"),
    [("model_def:Trial", "[]"), ("model_def:Trial", "['A=1']"), (SCRIPT, "[]")],
)
def test_config_too_large_for_one_variable_reaches_its_run(project, entrypoint, variables):
    """In a fork of a warm process, in an interpreter of its own, and in a script."""
    path = project.write(
        "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: 4}\ndata: {t:"
        f" {'x' * 160_000}}}\nenvironment: {{environment_variables: {variables}}}\n"
    )
    path.write_text(path.read_text().replace("model_def:Trial", entrypoint))
    project.det("run", path, "--quiet", env=project.environ())


@pytest.mark.thorough
def test_without_descriptors_runs_wait_for_one_another(project):
    path = project.write(SEARCH.replace("max_length: 40", "max_length: 4") % 30)
    text = path.read_text().replace("max_concurrent_trials: 2", "max_concurrent_trials: 30")
    path.write_text(
        text + "environment: {environment_variables: ['A=1']}\n"
    )  # so that each is an interpreter of its own
    command = [
        "bash",
        "-c",
        'ulimit -n 40; exec "$@"',
        "bash",
        *project.det.argv(["run", path, "--quiet"]),
    ]
    env = project.det.env(project.environ(16))
    done = subprocess.run(
        command,
        cwd=project.det.cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = project.outcome()
    assert [(str(trial.state), trial.restarts) for trial in found.trials] == [("COMPLETED", 0)] * 30


ENGINE = """
    import errno
    import time
    from det_core import hookimpl
    from det_core.hooks.records import EngineRecord
    from det_driver.engines.local import LocalEngine

    class Poor(LocalEngine):
        started = 0

        def start(self, spec):
            Poor.started += 1
            if Poor.started == {at}:
                time.sleep(0.5)  # the others train meanwhile
                raise {error}
            super().start(spec)

    @hookimpl
    def det_engines():
        yield EngineRecord(name="poor", load=lambda: Poor)
"""


@pytest.fixture
def poor(plugin_path):
    """Install an engine that fails at a start."""

    def install(at: int, error: str) -> None:
        (plugin_path / "poor_hooks.py").write_text(
            textwrap.dedent(ENGINE.format(at=at, error=error))
        )
        points = plugin_path / "fakes-1.0.dist-info" / "entry_points.txt"
        points.write_text(points.read_text() + "poor = poor_hooks\n")

    return install


def test_a_run_that_cannot_be_started_waits_and_the_others_go_on(project, poor):
    poor(2, 'BlockingIOError(errno.EAGAIN, "no more processes")')
    path = project.write(SEARCH.replace("max_length: 40", "max_length: 4") % 4)
    project.det("run", path, "--quiet", "--engine", "poor", env=project.environ())
    found = project.outcome()
    found.check()
    assert [(str(trial.state), trial.restarts) for trial in found.trials] == [("COMPLETED", 0)] * 4
    outcomes = [run.outcome for runs in project.runs().values() for run in runs]
    assert outcomes.count("not started: no more processes") == 1


def test_unstartable_run_stops_the_experiment_until_repaired(project, two_under_way):
    two_under_way.send_signal(signal.SIGINT)
    assert two_under_way.wait(timeout=60) == 130
    trials = project.det.home / "experiments" / "1" / "trials"
    trials.rename(aside := trials.with_name("aside"))
    trials.write_text("a file where a directory belongs")
    done = project.det("resume", "1", "--quiet", env=project.environ(), status=None)
    assert done.returncode not in (0, 130)
    assert "its run cannot be started: Not a directory" in done.stderr
    trials.unlink()
    aside.rename(trials)
    project.det("resume", "1", "--quiet", env=project.environ())
    assert [(str(trial.state), trial.restarts) for trial in project.outcome().trials] == [
        ("COMPLETED", 0)
    ] * 2


@pytest.mark.thorough
def test_search_with_a_failed_trial_resumes_after_a_driver_error(project, poor):
    poor(4, 'RuntimeError("a bug of the engine")')
    path = project.write(SEARCH.replace("max_length: 40", "max_length: 4") % 5)
    fates = "  fate: {type: categorical, vals: [good, error]}\n"
    path.write_text(path.read_text().replace("searcher:", fates + "searcher:"))
    done = project.det(
        "run", path, "--quiet", "--engine", "poor", env=project.environ(1), status=None
    )
    assert done.returncode not in (0, 130)
    with Store.reader(project.det.home) as store:
        assert store.experiments.get(1).state is ExperimentState.ERROR
        assert store.experiments.get(1).reason == "RuntimeError: a bug of the engine"
        before = [str(trial.state) for trial in store.trials.list(1)]
    assert {"ERROR", "PAUSED"} <= set(before)
    project.det("resume", "1", "--quiet", "--engine", "local", env=project.environ(1))
    with Store.reader(project.det.home) as store:
        states = {trial.hparams["fate"]: str(trial.state) for trial in store.trials.list(1)}
    assert states == {"good": "COMPLETED", "error": "ERROR"}


TAKEN = """
    import os, signal
    from det_core import core

    with core.init() as context:
        os.kill(os.getpid(), signal.SIGTERM)
        while not context.preempt.should_preempt():
            pass
"""


@pytest.mark.thorough
def test_repeated_preemption_without_progress_fails_the_trial(project):
    """By a signal that nobody of det's has sent.

    What is its own mistake would repeat itself for ever.
    """
    (project.det.cwd / "train.py").write_text(textwrap.dedent(TAKEN))
    path = project.write(
        "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: 1}\n"
    )
    path.write_text(path.read_text().replace("model_def:Trial", "python3 train.py"))
    project.det("run", path, "--quiet", env=project.environ(), status=1)
    (runs,) = project.runs().values()
    assert [run.outcome for run in runs] == ["preempted"] * 6


EPILOGUE = """
    import time
    from det_core import core

    with core.init() as context:
        for operation in context.searcher.operations():
            context.train.report_validation_metrics(1, {"val_loss": 1.0})
            operation.report_completed(1.0)
    time.sleep(60)
"""


def test_run_that_ignores_preemption_has_a_deadline(project):
    (project.det.cwd / "train.py").write_text(textwrap.dedent(EPILOGUE))
    path = project.write(
        "searcher: {name: random, metric: val_loss, max_trials: 1, max_length:"
        " 1}\npreemption_timeout: 1\n"
    )
    path.write_text(path.read_text().replace("model_def:Trial", "python3 train.py"))
    began = time.monotonic()
    project.det("run", path, "--quiet", env=project.environ(), status=None)
    assert time.monotonic() - began < 30


@pytest.mark.sample
@pytest.mark.parametrize(("patience", "saves"), [(1, False), (60, True)])
def test_worker_without_a_driver_has_the_configured_time_to_save(
    project, wait_until, patience, saves
):
    search = "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: 40}\n"
    path = project.write(search + f"preemption_timeout: {patience}\n")
    driver = project.det.start("run", path, "--quiet", env=project.environ(1, {"PAUSE": "4"}))
    logs = project.det.home / "experiments" / "1" / "trials"
    wait_until(
        lambda: any(logs.glob("*/run-1/process.json")) if logs.exists() else False, "the worker"
    )
    log_dir = next(logs.glob("*/run-1"))
    time.sleep(2.5)  # it is in a step of four seconds now
    driver.kill()
    driver.wait()
    ((pid, birth),) = noted_processes(log_dir)
    wait_until(lambda: not is_running(pid, birth), "the end of the worker")
    assert bool(list((project.det.home / "experiments" / "1" / "spool").glob("*.json"))) is saves


@pytest.mark.sample
@pytest.mark.parametrize("agent_too", [False, True])
def test_immediate_new_driver_lets_a_worker_finish_saving(project, wait_until, agent_too):
    search = "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: 40}\n"
    path = project.write(search + "preemption_timeout: 60\n")
    driver = project.det.start("run", path, "--quiet", env=project.environ(1, {"PAUSE": "4"}))
    wait_until(lambda: begun(project.det.home) == [1], "the first step")
    ((worker, _),) = noted_processes(next(project.det.home.glob("experiments/1/trials/*/run-1")))
    for pid in (
        [each for each in processes(project.det.home) if each != worker]
        if agent_too
        else [driver.pid]
    ):
        os.kill(pid, signal.SIGKILL)
    driver.wait()
    project.det("resume", "1", "--quiet", env=project.environ(1))
    assert [run.first_batch for run in project.runs()[0]] == [0, 1]
    assert begun(project.det.home) == [
        1
    ]  # it began no second step; the run after it has no pause, and is not counted


UNEVEN = CUSTOM.replace("Picky", "Uneven").replace(
    "return self.factory.start(3, 4)",
    "return [*self.factory.start(1, 4), *self.factory.start(1, 40)]",
)
UNEVEN = UNEVEN.replace('raise ZeroDivisionError("not this one")', "return [Close(trial)]").replace(
    "return [Close(trial)]\n\n        def exited",
    "return [Close(trial), *(self.factory.start(1, 4) if trial == 0 else [])]\n\n        def"
    " exited",
)


def test_driver_error_costs_runs_no_trained_batches(project, poor):
    """The engine fails to start what follows the short trial, while the long one trains."""
    poor(3, 'RuntimeError("a bug of the engine")')
    (project.det.cwd / "uneven.py").write_text(textwrap.dedent(UNEVEN))
    path = project.write(
        "searcher: {name: custom, metric: val_loss, entrypoint: 'uneven:Uneven'}\n"
    )
    done = project.det(
        "run",
        path,
        "--quiet",
        "--engine",
        "poor",
        status=None,
        env=project.environ(2, {"PAUSE": "0.1"}),
    )
    assert "a bug of the engine" in done.stderr
    project.det("resume", "1", "--quiet", "--engine", "local", env=project.environ(2))
    assert project.runs()[1][-1].first_batch > 0


def test_pause_does_not_undo_a_cancel(project, two_under_way):
    with Store(project.det.home) as store:
        store.commands.send(1, "cancel")
    while store.commands.names(1):
        time.sleep(0.02)
    two_under_way.send_signal(signal.SIGTERM)
    assert two_under_way.wait(timeout=60) == 1
    assert project.det.json("show", "1")["experiment"]["state"] == "CANCELED"


# What a driver takes over, and what it leaves


@pytest.fixture
def home(tmp_path: Path):
    with Store(tmp_path / "home") as store:
        yield store


def experiment(store: Store, **settings) -> int:
    searcher = {"name": "single", "metric": "loss", "max_length": 10}
    config = parse(
        {"entrypoint": "model_def:Trial", "hyperparameters": {}, "searcher": searcher, **settings}
    ).config
    id = store.experiments.create(name="x", config=to_json(config), metric="loss").id
    store.code_dir(id).mkdir()
    return id


def note(
    store: Store, id: int, run_id: int, manifest: Manifest, storage: str = "file:///there"
) -> Path:
    spool = store.experiment_dir(id) / "spool"
    spool.mkdir(exist_ok=True)
    path = spool / f"{manifest.uuid}.json"
    path.write_bytes(encode_note(Spooled(run_id, manifest, storage)))
    return path


def checkpoint(store: Store, trial: int, run: int, uuid: str, batches: int) -> None:
    store.checkpoints.record(uuid, trial, run, batches, storage="", size=1, framework="fake")


def test_spooled_checkpoint_is_recorded_like_a_reported_one(home):
    id = experiment(home)
    with home.lock(id):
        trial = home.trials.create(id, 0, {}, 1)
        run = home.runs.begin(trial.id)
        files = {"weights": FileEntry(size=10, digest="0" * 64)}
        path = note(home, id, run.id, Manifest(
            uuid="a", framework="fake", batches=20, trial_id=trial.id, metadata={"steps_completed": 20}, files=files
        ))  # fmt: skip
        record_spooled(home, id)
        row = home.checkpoints.get("a")
        assert (row.run_id, row.batches, row.metadata, row.storage, row.size) == (
            run.id, 20, {"steps_completed": 20}, "file:///there", 10,
        )  # fmt: skip
        assert home.trials.get(trial.id).latest_checkpoint == "a"
        assert not path.exists()


def test_a_note_of_a_run_that_was_replaced_changes_nothing(home):
    id = experiment(home)
    with home.lock(id):
        trial = home.trials.create(id, 0, {}, 1)
        old = home.runs.begin(trial.id)
        new = home.runs.begin(trial.id)
        checkpoint(home, trial.id, new.id, "new", 100)
        note(
            home,
            id,
            old.id,
            Manifest(uuid="zombie", framework="fake", batches=200, trial_id=trial.id),
        )
        note(
            home, id, new.id, Manifest(uuid="back", framework="fake", batches=20, trial_id=trial.id)
        )
        record_spooled(home, id)
        assert home.trials.get(trial.id).latest_checkpoint == "new"
        assert [row.uuid for row in home.checkpoints.list(experiment_id=id)] == ["new"]


def test_a_note_stays_as_long_as_what_it_says_cannot_be_recorded(home):
    id = experiment(home)
    with home.lock(id) as database:
        trial = home.trials.create(id, 0, {}, 1)
        run = home.runs.begin(trial.id)
        long = {"said": "x" * 50_000}
        path = note(
            home,
            id,
            run.id,
            Manifest(uuid="a", framework="fake", batches=20, trial_id=trial.id, metadata=long),
        )
        full = database.rows("PRAGMA page_count")[0][0]
        database.run(f"PRAGMA max_page_count = {full}")
        with pytest.raises(StoreUnwritable, match="the disk is full"):
            record_spooled(home, id)
        assert path.exists()
        database.run(f"PRAGMA max_page_count = {full + 1000}")
        record_spooled(home, id)
        assert home.trials.get(trial.id).latest_checkpoint == "a"
        assert not path.exists()


def test_a_note_that_a_crash_left_empty_is_put_aside(home, capsys):
    id = experiment(home)
    spool = home.experiment_dir(id) / "spool"
    spool.mkdir()
    (spool / "x.json").touch()
    record_spooled(home, id)
    assert [path.name for path in spool.iterdir()] == ["x.damaged"]
    assert "x.json is no note of a checkpoint" in capsys.readouterr().err


def test_next_driver_finishes_interrupted_deletions(home):
    id = experiment(
        home, checkpoint_storage={"type": "directory", "container_path": str(home.home / "kept")}
    )
    with home.lock(id):
        trial = home.trials.create(id, 0, {}, 1)
        run = home.runs.begin(trial.id)
        for batches in (10, 20):
            folder = home.home / "kept" / f"{batches}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(f'{{"uuid": "{batches}"}}')
            checkpoint(home, trial.id, run.id, f"{batches}", batches)
    expect_garbage(home, id)
    assert collect_left(home, Plugins.installed()) == {}  # it has not ended
    expect_garbage(home, id)
    with home.lock(id):
        home.experiments.update(id, state=ExperimentState.COMPLETED)
    assert collect_left(home, Plugins.installed()) == {id: ["10"]}
    assert home.checkpoints.get("10").state is CheckpointState.DELETED
    assert collect_left(home, Plugins.installed()) == {}


def test_a_collection_that_was_interrupted_is_done_by_a_command(project):
    project.run(
        "searcher: {name: random, metric: val_loss, max_trials: 1, max_length:"
        " 40}\nmin_checkpoint_period: 5\n"
    )
    with Store(project.det.home) as store, store.lock(1):
        root, run = project.det.home / "checkpoints", store.runs.list(1)[0]
        (root / "left").mkdir()
        (root / "left" / "manifest.json").write_text('{"uuid": "left"}')
        checkpoint(store, 1, run.id, "left", 15)
        expect_garbage(store, 1)
    assert project.det("gc").stdout == "experiment 1: 1 checkpoints deleted\n"
    (kept,) = root.iterdir()
    assert kept.name == project.det.json("checkpoint", "list", "1")[0]["uuid"]
    assert project.det("gc").stdout == "nothing was left to delete\n"
    assert project.det.json("gc") == {}


def test_a_time_that_only_validations_tell_needs_some_of_them(project):
    searcher = (
        "{name: adaptive_asha, metric: val_loss, time_metric: seconds, max_time: 8, max_trials: 2}"
    )
    done = project.det("run", project.write(f"searcher: {searcher}\n"), "--quiet", status=2)
    assert (
        done.stderr
        == "det: searcher.time_metric is 'seconds', which validations report, and there is none"
        " before the end; set min_validation_period, such as {batches: 100}\n"
    )


# Commands


def test_uncollectable_garbage_does_not_block_other_garbage(home, capsys):
    ids = [
        experiment(
            home, checkpoint_storage={"type": "directory", "container_path": str(home.home / "k")}
        )
        for _ in "ab"
    ]
    for id in ids:
        with home.lock(id):
            home.experiments.update(id, state=ExperimentState.COMPLETED)
        expect_garbage(home, id)
    with home.lock(ids[0]):
        text = home.experiments.get(ids[0]).config.replace('"directory"', '"elsewhere"')
        home.experiments.update(ids[0], config=text)
    (home.home / "garbage" / "note").touch()
    assert collect_left(home, Plugins.installed()) == {ids[0]: [], ids[1]: []}
    assert (
        f"checkpoints of experiment {ids[0]} that are not to be kept are still there"
        in capsys.readouterr().err
    )


@pytest.mark.thorough
def test_command_to_an_earlier_driver_does_not_affect_the_next(project, two_under_way):
    two_under_way.send_signal(signal.SIGINT)
    assert two_under_way.wait(timeout=60) == 130
    with Store(project.det.home) as store:
        store.commands.send(1, "cancel")
    project.det("resume", "1", "--quiet", env=project.environ())
    assert {str(trial.state) for trial in project.outcome().trials} == {"COMPLETED"}


@pytest.mark.thorough
def test_command_to_a_starting_driver_takes_effect(project, wait_until):
    """It waits for what an earlier driver left, which saves."""
    search = "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: 40}\n"
    first = project.det.start(
        "run", project.write(search), "--quiet", env=project.environ(1, {"PAUSE": "4"})
    )
    wait_until(lambda: begun(project.det.home) == [1], "a step of four seconds")
    first.kill()
    first.wait()
    driver = project.det.start("resume", "1", "--quiet", env=project.environ(1))
    lock = project.det.home / "experiments" / "1" / "lock"
    wait_until(lambda: lock.read_text() == str(driver.pid), "a driver that has the experiment")
    project.det("cancel", "1")
    status = driver.wait(timeout=60)
    assert (project.det.json("show", "1")["experiment"]["state"], status) == ("CANCELED", 1)


LOCKED = """
    import os, time
    from pathlib import Path
    from det_core import core

    place = Path(os.environ["PLACE"])
    with core.init() as context:
        for operation in context.searcher.operations():
            (place / "under-way").touch()
            while not (place / "locked").exists():
                time.sleep(0.01)
            context.train.report_training_metrics(1, {"x": 1.0})
            context.train.report_validation_metrics(2, {"val_loss": 2.0})
            context.train.report_validation_metrics(3, {"val_loss": 3.0})
            operation.report_completed(3.0)
"""


@pytest.mark.thorough
def test_locked_store_loses_no_metric(project, wait_until):
    """One that is only told is not answered where it cannot be taken.

    test_connections.py has the quick half of this.
    """
    (place := project.det.cwd.parent / "place").mkdir()
    (project.det.cwd / "train.py").write_text(textwrap.dedent(LOCKED))
    path = project.write(
        "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: 3}\n"
    )
    path.write_text(path.read_text().replace("model_def:Trial", "python3 train.py"))
    env = project.environ(1, {"PLACE": str(place)})
    driver = project.det.start("run", path, "--quiet", env=env)
    wait_until((place / "under-way").exists, "the script")
    database = project.det.home / "experiments" / "1" / "experiment.db"
    with closing(sqlite3.connect(database, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        (place / "locked").touch()
        time.sleep(36)
        other.execute("ROLLBACK")
    status = driver.wait(timeout=60)
    if status == 130:
        project.det("resume", "1", "--quiet", env=env)
    found = project.outcome()
    assert [(str(trial.state), trial.restarts) for trial in found.trials] == [("COMPLETED", 0)], (
        driver.stdout.read()
    )
    assert [(group, batches) for group, batches, _ in found.metrics[1]] == [
        *(("training", 1), ("validation", 2)),
        ("validation", 3),
    ]

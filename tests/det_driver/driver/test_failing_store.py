"""A search whose driver cannot write, at any of its writes, is resumed, and nothing of it is lost.

As SQLite tests itself: the search runs once and its driver's writes are counted, those to its
databases and all others below the home; then once for each of them, which fails (an I/O error; a
disk that is full from there on), or at which the driver is killed (and its agent lets the run end
at once, or the next driver finds it at work). A sample runs by default; `--kills=0` tries all of
them (`nox -s chaos`), in processes that are forks of one that has imported everything.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.forks import Forked, serving

from det_driver.config import load
from det_driver.driver import create
from det_driver.store import ExperimentState, Store, TrialState
from det_node.process import is_running, noted_processes

# One slot, so that the order of the reports, on which promotions depend, is always the same.
SEARCH = """
name: search
entrypoint: model_def:Trial
reproducibility: {experiment_seed: 7}
max_restarts: 0
scheduling_unit: 4
min_checkpoint_period: {batches: 3}
hyperparameters: {lr: {type: log, minval: -4, maxval: -1}, noise: 0.3, shuffle: true}
searcher: {%s, metric: val_loss, max_trials: 6, max_length: 4, divisor: 2, num_rungs: 3, max_concurrent_trials: 2}
"""
RANDOM = SEARCH % "name: async_halving"
TPE = SEARCH % "sampler: tpe, sampler_options: {startup_trials: 2}, schedule: async_halving"
KINDS = ("eio", "enospc", "kill")
LEASES = ("0", "15")
"""How many seconds runs go on without a driver.

They save at once, or the next driver finds them at work.
"""
TAKES_OVER = 60  # the writes of a driver that goes on, until it goes on as it would have anyway
AT_ONCE = 4  # some wait
LIMIT_SECONDS = 120.0

Drive = Callable[[list[str], dict[str, str], Path], tuple[int, str]]


@pytest.fixture
def processes(faults: Path) -> Drive:
    """Drives in a process, as a person does."""

    def drive(argv: list[str], env: dict[str, str], cwd: Path) -> tuple[int, str]:
        env = {**env, "LD_PRELOAD": str(faults)}
        done = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return drive


@pytest.fixture
def forks(faults: Path, project: Any, tmp_path: Path) -> Iterator[Drive]:
    """Drives in a fork, and so are its agents and workers."""
    place, env = tmp_path / "forks", {**project.det.env(project.env), "LD_PRELOAD": str(faults)}
    with serving(place, env):
        yield lambda *how: forked(place, *how)


def forked(place: Path, argv: list[str], env: dict[str, str], cwd: Path) -> tuple[int, str]:
    Forked.place = place
    with tempfile.TemporaryFile("w+") as said:
        process = Forked(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            status = process.wait(LIMIT_SECONDS)
        finally:
            process.kill()
        said.seek(0)
        return status, said.read()


@dataclasses.dataclass(frozen=True)
class Point:
    """A write of a driver and what becomes of it.

    `after` so many writes of an earlier one, that was killed at the last of them.
    """

    kind: str
    at: int
    after: int = 0

    @property
    def env(self) -> dict[str, str]:
        return {"FAULT_KIND": self.kind, "FAULT_AT": str(self.at), "DET_LEASE": LEASES[self.at % 2]}

    @property
    def before(self) -> Point | None:
        return Point("kill", self.after) if self.after else None


class Struck:
    """One experiment in a home of its own, driven with faults until it is through."""

    def __init__(self, project: Any, drive: Drive, home: Path, search: str = RANDOM) -> None:
        det = dataclasses.replace(project.det, home=home / "home", started=[])
        self.project, self.drive, self.count = (
            dataclasses.replace(project, det=det),
            drive,
            home / "count",
        )
        config = home / "search.yaml"
        config.write_text(search)
        with Store(det.home) as store:
            self.id = create(store, load(config).config, det.cwd)

    def resume(self, **env: str) -> tuple[int, str]:
        """Drive it on, with faults where `env` names some; the writes are counted then."""
        det, strikes = (
            self.project.det,
            {"FAULT_ROOT": str(self.project.det.home), "FAULT_COUNT": str(self.count)},
        )
        argv = [sys.executable, "-P", "-m", "det_driver.cli", "resume", str(self.id), "--quiet"]
        return self.drive(
            argv, det.env(self.project.environ(1, {**strikes, **env} if env else {})), det.cwd
        )

    @property
    def writes(self) -> list[str]:
        """What was written, and to which files, without the numbers that are in their names."""
        lines = self.count.read_text().splitlines() if self.count.exists() else []
        return ["".join("N" if c.isdigit() else c for c in line) for line in lines]

    def at(self, point: Point) -> str:
        """What was struck; nothing where the search was through before."""
        return "".join(self.writes[point.at - 1 : point.at])

    def finish(self) -> Any:
        """Resume until it is complete, as a person would who has made room.

        Return what must not depend on the faults.
        """
        home, status, said = self.project.det.home, 0, ""
        for _ in range(3):
            with Store.reader(home) as store:
                if store.experiments.get(self.id).state is ExperimentState.COMPLETED:
                    break
            status, said = self.resume()
            assert status == 0, said
        outcome = self.project.outcome(self.id)
        outcome.check()
        with Store(home) as store:  # what the dead had can be leased, too
            lease = store.slots.lease(self.id, 1, ["cpu:0"])
            assert lease is not None
            store.slots.release(lease)
        with Store.reader(home) as store:
            runs = [run for trial in outcome.trials for run in store.runs.list(trial.id)]
            assert all(run.ended is not None for run in runs), runs
            metrics = [
                [(m.group, m.batches, m.values) for m in store.metrics.read(trial_id=each.id)]
                for each in outcome.trials
            ]
        assert not [
            pid
            for run in runs
            for pid, born in noted_processes(run.log_dir)
            if is_running(pid, born)
        ]
        for database in home.glob("**/*.db"):
            with closing(sqlite3.connect(database)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], (
                    database
                )
        told = [
            (type(event).__name__, event.trial, getattr(event, "length", None))
            for event in outcome.events[1:]
        ]
        trials = [
            (t.request, t.hparams, t.seed, str(t.state), t.batches, t.best_metric, t.best_batches)
            for t in outcome.trials
        ]
        told = [
            *dict.fromkeys(told)
        ]  # a run that was lost before its answer says again what it found: it is passed over
        return (
            trials,
            told,
            metrics,
            [self._weights(trial.latest_checkpoint) for trial in outcome.trials],
        )

    def _weights(self, uuid: str) -> Any:
        return json.loads((self.project.det.home / "checkpoints" / uuid / "state.json").read_text())


def strike(struck: Struck, point: Point, expected: Any) -> str:
    """Drive a search with a fault, and resume it.

    Return what was struck, nothing where it was through before.
    """
    if point.before:
        struck.resume(**point.before.env)
        struck.count.unlink()
    status, said = struck.resume(**point.env)
    if point.kind == "kill":
        assert status in (0, -signal.SIGKILL), said
    else:
        assert status in (0, 130, 2), said
        assert "Traceback" not in said
    with Store.reader(struck.project.det.home) as store:
        began = any(store.runs.list(trial.id) for trial in store.trials.list(struck.id))
        assert status != 2 or (said.startswith("det: ") and (point.after or not began)), said
        assert store.experiments.get(struck.id).state is not ExperimentState.ERROR, said
        assert not any(trial.state is TrialState.ERROR for trial in store.trials.list(struck.id)), (
            said
        )
    for found, wanted in zip(struck.finish(), expected, strict=True):
        assert found == wanted, said
    return ("taking over: " if point.after else "") + (
        struck.at(point) or "nothing, it was through"
    )


def points(writes: int, count: int) -> list[Point]:
    """So many at random, or all of them and some more, as not every search writes as often."""
    seed = int(os.environ.get("DET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    chance, most = random.Random(seed), writes + (0 if count else 10)
    every = [Point(kind, at) for kind in KINDS for at in range(1, most + 1)]
    # Half through, at an odd and at an even write: a run saves by itself, or goes on.
    every += [
        Point(kind, at, writes // 2 + k)
        for kind in KINDS
        for at in range(1, TAKES_OVER + 1)
        for k in (0, 1)
    ]
    print(f"DET_CHAOS_SEED={seed}, {writes} writes, {len(every)} points")
    return chance.sample(every, count * len(KINDS) or len(every))


@pytest.mark.parametrize(
    ("way", "search"),
    [
        pytest.param("processes", RANDOM, marks=pytest.mark.thorough, id="processes"),
        pytest.param("forks", RANDOM, id="forks"),
        pytest.param("forks", TPE, marks=pytest.mark.thorough, id="tpe"),
    ],
)
def test_write_failure_pauses_a_search_that_resumes_without_loss(
    way: str,
    search: str,
    request: pytest.FixtureRequest,
    project: Any,
    pytestconfig: pytest.Config,
) -> None:
    if search is TPE:
        pytest.importorskip("det_optuna", reason="it has the sampler")
    drive, kills = request.getfixturevalue(way), pytestconfig.getoption("kills")
    memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
    where, wrong, began = Counter[str](), list[str](), time.monotonic()

    def attempt(point: Point) -> None:
        with tempfile.TemporaryDirectory(dir=memory, prefix="det-") as place:
            struck = Struck(project, drive, Path(place), search)
            try:
                where[f"{point.kind}, {strike(struck, point, expected)}"] += 1
            except (Exception, pytest.fail.Exception) as error:
                wrong.append(
                    f"{point} of {writes}, {struck.at(point)}: {type(error).__name__}: {error}"
                )
                print(wrong[-1], flush=True)
            if where.total() % 100 == 0:
                print(f"{where.total()} points in {time.monotonic() - began:.0f} s", flush=True)

    with tempfile.TemporaryDirectory(dir=memory, prefix="det-") as place:
        struck = Struck(project, drive, Path(place), search)
        status, said = struck.resume(FAULT_AT="0")
        assert status == 0, said
        writes, expected = len(struck.writes), struck.finish()
    assert len(expected[0]) == 6
    promoted = Counter(trial for kind, trial, _ in expected[1] if kind == "TrialValidated")
    assert max(promoted.values()) > 2
    with ThreadPoolExecutor(AT_ONCE if way == "forks" else 1) as threads:
        list(threads.map(attempt, points(writes, 1 if way == "processes" else kills)))
    print("\n".join(f"{count:6} {what}" for what, count in sorted(where.items())))
    assert not wrong, "\n\n".join([f"{len(wrong)} points", *wrong[:20]])


@pytest.mark.sample
@pytest.mark.parametrize(
    ("kind", "why"),
    [("enospc", "the disk is full|No space left"), ("eio", "the disk failed|Input/output error")],
)
def test_write_failure_before_the_first_run_is_explained(
    forks: Drive, project: Any, tmp_path: Path, kind: str, why: str
) -> None:
    """The experiment pauses, or the message says why it cannot."""
    whole = Struck(project, forks, tmp_path)
    assert whole.resume(FAULT_AT="0")[0] == 0
    for name in (
        "/agents/.secret",
        "/agents/driver.json",
        "/agents/agent.log",
        "/experiment.db-wal",
    ):
        at = next(
            n for n, what in enumerate(whole.writes, 1) if what.endswith(name) and n > 30
        )  # the driver has its lock
        (place := tmp_path / str(at)).mkdir()
        status, said = Struck(project, forks, place).resume(FAULT_KIND=kind, FAULT_AT=str(at))
        assert status == 130, said
        assert re.search(why, said), said
        assert "go on with: det resume 1\n" in said
        assert "Traceback" not in said
    at = next(
        n
        for n, what in enumerate(whole.writes, 1)
        if what.endswith("truncate /experiments/N/experiment.db-shm")
    )
    (place := tmp_path / str(at)).mkdir()
    status, said = Struck(project, forks, place).resume(FAULT_KIND=kind, FAULT_AT=str(at))
    assert status == 2
    assert kind == "eio" or "needs some room beside it: the disk is full, or has failed" in said

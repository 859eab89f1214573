"""A driver may die at any instant; what it left must be whole."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from det_driver.store import Store

pytestmark = pytest.mark.process

WRITE = """
import json, sys
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store:
    if not store.experiments.list():
        assert store.experiments.create(name="x", config="{}", metric="loss").id == 1
    with store.lock(1):
        print("ready", flush=True)
        n = len(store.trials.list(1))
        while True:
            with store.transaction():
                assert store.journal.append(1, json.dumps({"create": n})) == n + 1
                trial = store.trials.create(1, n, {"n": n}, seed=n)
                run = store.runs.begin(trial.id)
                for batches in (10, 20):
                    store.metrics.report(trial.id, run.id, "validation", batches, {"loss": float(n)})
                store.checkpoints.record(f"u{n}", trial.id, run.id, 20, storage="{}", size=1)
            n += 1
"""


def check(home: Path) -> int:
    """Assert that the store is sound and every transaction whole; returns how many there are."""
    with closing(sqlite3.connect(home / "experiments" / "1" / "experiment.db")) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    with Store.reader(home) as store:
        events = [event.seq for event in store.journal.read(1)]
        trials = store.trials.list(1)
        assert events == [*range(1, len(trials) + 1)]
        assert [trial.request for trial in trials] == [*range(len(trials))]
        assert all(
            (trial.runs, trial.latest_metric, trial.batches) == (1, trial.request, 20)
            for trial in trials
        )
        assert [found.batches for found in store.metrics.read(experiment_id=1)] == [10, 20] * len(
            trials
        )
        assert len(store.checkpoints.list(experiment_id=1)) == len(trials)
        return len(trials)


def test_a_writer_killed_at_any_moment_leaves_whole_transactions(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    dice = random.Random(0)
    before = 0
    for _ in range(8):
        writer = start(WRITE, tmp_path)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n", "the lock of the killed writer must be free"
        time.sleep(dice.random() * 0.15)
        writer.kill()
        writer.wait()
        after = check(tmp_path)
        assert after >= before
        before = after
    assert before > 0


CREATE = """
import os, signal, sys
from pathlib import Path
from det_driver.store import Store, _database
count = int(sys.argv[2])
def counted(call):
    def replaced(*arguments):
        global count
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return replaced
_database.Database.run = counted(_database.Database.run)
for name in ("fsync", "mkdir", "open", "rename"):
    setattr(os, name, counted(getattr(os, name)))
with Store(Path(sys.argv[1])) as store:
    store.experiments.create(name="x", config="{}", metric="loss")
"""


def test_home_opens_after_a_kill_during_its_first_creation(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Killed before each of its statements and changes of files in turn.

    There is a whole experiment afterwards, or none.
    """
    for step in range(100):
        home = tmp_path / str(step)
        killed = start(CREATE, home, step).wait() != 0
        with Store(home) as store:
            listed = [each.experiment.id for each in store.experiments.list()]
            made = store.experiments.create(name="next", config="{}").id
            assert listed in ([], [1])
            assert made not in listed
            assert [each.experiment.id for each in store.experiments.list()] == [made, *listed]
        if not killed:
            break
    assert 5 < step < 99

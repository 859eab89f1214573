from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from det_core.errors import ExperimentBusy, StoreError
from det_driver.store import Store
from det_driver.store._locks import experiment_lock

HOLD = """
import subprocess, sys
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store, store.lock(int(sys.argv[2])):
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


def test_the_lock_names_the_process_that_holds_it(store: Store, start: Callable[..., subprocess.Popen[str]]) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    holder = start(HOLD, store.home, experiment.id)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with (
            pytest.raises(
                ExperimentBusy,
                match=rf"^experiment 1 is held by process {holder.pid}; det pause 1 asks it to stop$",
            ),
            store.lock(experiment.id),
        ):
            pass

        # Its child lives on and must not keep the lock.
        holder.kill()
        holder.wait()
        with store.lock(experiment.id):
            os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_keep_the_lock_alive(store: Store) -> None:
    """A fork server is such a child."""
    experiment = store.experiments.create(name="x", config="{}")
    reading, writing = os.pipe()
    with store.lock(experiment.id):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        with store.lock(experiment.id):
            pass
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_the_lock_can_be_taken_again_after_it_is_left(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    for _ in range(2):
        with store.lock(experiment.id):
            assert (store.experiment_dir(experiment.id) / "lock").read_text() == str(os.getpid())


def test_who_only_looks_does_not_keep_a_driver_away(store: Store) -> None:
    """A look at the lock, or the change of a name, holds it for an instant."""
    experiment = store.experiments.create(name="x", config="{}")
    lock = experiment_lock(experiment.id, store.experiment_dir(experiment.id))
    with lock:
        thread = threading.Timer(0.05, lambda: lock.__exit__(None, None, None))
        thread.start()
        with store.lock(experiment.id):
            thread.join()


def test_a_lock_that_cannot_be_made_is_named(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    (store.experiment_dir(experiment.id) / "lock").mkdir()

    with (
        pytest.raises(StoreError, match=r"^cannot lock .*/experiments/1/lock: Is a directory; choose a home"),
        store.lock(experiment.id),
    ):
        pass


def test_only_who_holds_the_lock_writes(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")

    with pytest.raises(
        StoreError, match=r"experiments/1/experiment.db was opened for reading only; open a Store to change"
    ):
        store.trials.create(experiment.id, 0, {}, seed=0)
    with pytest.raises(
        StoreError, match=r"^the store is written by who holds the lock of one experiment; take it with"
    ):
        store.runs.end(1, "LOST")
    with store.lock(experiment.id):
        store.trials.create(experiment.id, 0, {}, seed=0)


def test_what_people_change_takes_the_lock_and_is_refused_while_a_driver_has_it(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    with (
        Store(store.home) as other,
        other.lock(experiment.id),
        pytest.raises(ExperimentBusy, match=rf"^experiment 1 is held by process {os.getpid()}; det pause 1 asks"),
    ):
        store.experiments.update(experiment.id, name="y")

    store.experiments.update(experiment.id, name="y")
    assert store.experiments.get(experiment.id).name == "y"


ANOTHER = """
import sys
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store:
    store.experiments.update(1, name=sys.argv[2])
"""


def test_a_writer_that_comes_and_goes_takes_nothing_from_a_reader_of_the_same_process(tmp_path):
    """As in a notebook, or beside the page: the reader sees what another process writes then, and a file that is whole."""
    with Store(tmp_path) as store:
        store.experiments.create(name="0", config="{}")
    with Store.reader(tmp_path) as reader:
        for name in "1234":
            assert reader.experiments.get(1).name == str(int(name) - 1)
            with Store(tmp_path) as writer, writer.lock(1):
                assert writer.experiments.get(1).name == str(int(name) - 1)
            subprocess.run([sys.executable, "-c", ANOTHER, str(tmp_path), name], check=True)
            assert (tmp_path / "experiments/1/experiment.db-wal").exists()  # the other was not the last that had it
            assert reader.experiments.get(1).name == name

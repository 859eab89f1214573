from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from det_core.errors import ExperimentBusy, StoreError
from det_driver.store import ExperimentRow, Store

HOLD = """
import subprocess, sys
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store, store.lock(int(sys.argv[2])):
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


def test_the_lock_names_the_process_that_holds_it(
    store: Store, experiment: ExperimentRow, start: Callable[..., subprocess.Popen[str]]
) -> None:
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


def test_a_forked_child_does_not_keep_the_lock_alive(store: Store, experiment: ExperimentRow) -> None:
    """A fork server is such a child."""
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


def test_the_lock_can_be_taken_again_after_it_is_left(store: Store, experiment: ExperimentRow) -> None:
    for _ in range(2):
        with store.lock(experiment.id):
            assert (store.experiment_dir(experiment.id) / "lock").read_text() == str(os.getpid())


def test_a_lock_that_cannot_be_made_is_named(store: Store, experiment: ExperimentRow) -> None:
    store.experiment_dir(experiment.id).rmdir()

    with (
        pytest.raises(
            StoreError, match=r"^cannot lock .*/experiments/1/lock: No such file or directory; choose a home"
        ),
        store.lock(experiment.id),
    ):
        pass

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.process
def test_the_lock_names_the_process_that_holds_it(
    store: Store, start: Callable[..., subprocess.Popen[str]]
) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    holder = start(HOLD, store.home, experiment.id)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with (
            pytest.raises(
                ExperimentBusy,
                match=(
                    rf"^experiment 1 is held by process {holder.pid}; det pause 1 asks it to stop$"
                ),
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


@pytest.mark.process
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
        pytest.raises(
            StoreError, match=r"^cannot lock .*/experiments/1/lock: Is a directory; choose a home"
        ),
        store.lock(experiment.id),
    ):
        pass


def test_only_who_holds_the_lock_writes(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")

    with pytest.raises(
        StoreError,
        match=r"experiments/1/experiment.db was opened for reading only; open a Store to change",
    ):
        store.trials.create(experiment.id, 0, {}, seed=0)
    with pytest.raises(
        StoreError,
        match=r"^the store is written by who holds the lock of one experiment; take it with",
    ):
        store.runs.end(1, "LOST")
    with store.lock(experiment.id):
        store.trials.create(experiment.id, 0, {}, seed=0)


def test_user_changes_take_the_lock_and_fail_if_a_driver_has_it(store: Store) -> None:
    experiment = store.experiments.create(name="x", config="{}")
    with (
        Store(store.home) as other,
        other.lock(experiment.id),
        pytest.raises(
            ExperimentBusy,
            match=rf"^experiment 1 is held by process {os.getpid()}; det pause 1 asks",
        ),
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


@pytest.mark.process
def test_writer_does_not_disturb_a_reader_of_the_same_process(tmp_path):
    """As in a notebook, or beside the page.

    The reader sees what another process writes then, and a file that is whole.
    """
    with Store(tmp_path) as store:
        store.experiments.create(name="0", config="{}")
    with Store.reader(tmp_path) as reader:
        for name in "1234":
            assert reader.experiments.get(1).name == str(int(name) - 1)
            with Store(tmp_path) as writer, writer.lock(1):
                assert writer.experiments.get(1).name == str(int(name) - 1)
            subprocess.run([sys.executable, "-c", ANOTHER, str(tmp_path), name], check=True)
            assert (
                tmp_path / "experiments/1/experiment.db-wal"
            ).exists()  # the other was not the last that had it
            assert reader.experiments.get(1).name == name


def refuse_locks() -> None:
    """Have the kernel answer this thread's locks as NFS without lockd does.

    A seccomp filter, which ends with it.
    """
    control, flock = {"x86_64": (72, 73), "aarch64": (25, 32)}[platform.machine()]
    load, equal, give, refused = 0x20, 0x15, 0x06, 0x00050000 | errno.ENOLCK
    # System call, then the command of fcntl: F_SETLK, or that of an open file description.
    filter = [
        *((load, 0, 0, 0), (equal, 4, 0, flock), (equal, 0, 4, control), (load, 0, 0, 24)),
        *(
            (equal, 1, 0, fcntl.F_SETLK),
            (equal, 0, 1, 37),
            (give, 0, 0, refused),
            (give, 0, 0, 0x7FFF0000),
        ),
    ]
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in filter))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(filter), ctypes.addressof(steps))
    )
    libc = ctypes.CDLL(None)
    no_new_privileges, set_seccomp = 38, 22
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, 2, program):
        pytest.skip("the system lets no thread give up its locks")


@pytest.mark.parametrize("open", [Store, Store.reader])
def test_a_home_on_a_file_system_without_locks_is_named(
    tmp_path: Path, open: Callable[[Path], Store]
) -> None:
    """SQLite calls the file locked, by nobody, and waits half a minute for that."""
    with Store(tmp_path) as store:
        store.experiments.create(name="x", config="{}")
    raised: list[BaseException] = []

    def act() -> None:
        try:
            refuse_locks()
            with open(tmp_path) as store:
                store.experiments.get(1)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    if isinstance(raised[0], pytest.skip.Exception):
        raise raised[0]
    assert isinstance(raised[0], StoreError)
    assert str(raised[0]).startswith(
        f"cannot lock {tmp_path}/index.lock: No locks available; the file system of the home"
    )
    assert "locked by another" not in str(raised[0])

"""The lock of an experiment, and what tells processes apart."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from det_core.errors import ExperimentBusy, StoreError

_BRIEF_SECONDS = 0.3
"""Who looks whether an experiment is held, or changes its name, has done so by then."""


class ExperimentLock:
    """Held from entering to leaving; the kernel releases it when the process dies, however it dies."""

    def __init__(self, experiment_id: int, directory: Path) -> None:
        self._experiment_id = experiment_id
        self._path = directory / "lock"
        self._file: int | None = None

    def __enter__(self) -> Self:
        self._file = self._open()
        try:
            self._wait(self._file)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)
        except BlockingIOError as error:
            busy = self._busy(self._file)
            self.forget()
            raise busy from error
        except OSError as error:
            self.forget()
            raise self._unusable(error) from error
        # A flock belongs to the open file, which a child made by a bare fork would share and so keep locked.
        os.register_at_fork(after_in_child=_forget(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # at once, though a child may not have closed its copy yet
        self.forget()

    def forget(self) -> None:
        """Close the file and leave the lock to the process that took it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _wait(self, file: int) -> None:
        deadline = time.monotonic() + _BRIEF_SECONDS
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error

    def _busy(self, file: int) -> ExperimentBusy:
        holder = os.pread(file, 32, 0).decode(errors="replace")
        return ExperimentBusy(
            f"experiment {self._experiment_id} is held by process {holder or 'unknown'}; "
            f"det pause {self._experiment_id} asks it to stop"
        )

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(f"cannot lock {self._path}: {error.strerror}; choose a home that you can write to")


def _forget(lock: ExperimentLock) -> Callable[[], None]:
    reference = weakref.ref(lock)

    def forget() -> None:
        held = reference()
        if held is not None:
            held.forget()

    return forget


_REMOTE = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "fuse.glusterfs",
        "fuse.sshfs",
    }
)


def network_file_system(place: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system of a place, such as nfs4, where that is one of another machine; empty otherwise."""
    found, best = "", -1
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4]))
        if (
            place.resolve().is_relative_to(point) and len(point.parts) >= best
        ):  # of two in one place the later one counts
            found, best = after.split()[0], len(point.parts)
    return found if found in _REMOTE else ""


@cache
def boot_id() -> str:
    """What tells this start of the machine from every other; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def born(pid: int) -> str | None:
    """When the process started, in the system's own terms; None where there is no such process, or only its corpse."""
    if sys.platform != "linux":
        return _born_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may hold anything; count from its end.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else f"{boot_id()} {fields[18]}"


def _born_by_ps(pid: int) -> str | None:
    import subprocess

    answer = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()

"""The lock that makes a process the only driver of an experiment."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from det_core.errors import ExperimentBusy, StoreError


class ExperimentLock:
    """Held from entering to leaving; the kernel releases it when the process dies, however it dies."""

    def __init__(self, experiment_id: int, directory: Path) -> None:
        self._experiment_id = experiment_id
        self._path = directory / "lock"
        self._file: int | None = None

    def __enter__(self) -> Self:
        self._file = self._open()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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

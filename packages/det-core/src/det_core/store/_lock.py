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
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip()
            os.close(file)
            raise ExperimentBusy(
                f"experiment {self._experiment_id} is held by process {holder or 'unknown'}; "
                f"det pause {self._experiment_id} asks it to stop"
            ) from error
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        self._file = file
        # A flock belongs to the open file, which a child made by a bare fork would share and so keep locked.
        os.register_at_fork(after_in_child=_forget(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.forget()

    def forget(self) -> None:
        """Close the file, which releases the lock unless another process has the same file open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot lock {self._path}: {error.strerror}; check the home's rights") from error


def _forget(lock: ExperimentLock) -> Callable[[], None]:
    reference = weakref.ref(lock)

    def forget() -> None:
        held = reference()
        if held is not None:
            held.forget()

    return forget

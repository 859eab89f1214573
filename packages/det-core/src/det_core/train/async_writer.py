"""Writes a checkpoint in a thread while training continues, one at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..support.threads import start_thread

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingSave:
    """What `run` does in the thread, and what `ended` does afterwards in the loop.

    `run` returns whether the driver recorded the checkpoint.
    """

    run: Callable[[], bool]
    ended: Callable[[], None]


class AsyncCheckpointWriter:
    """Async checkpoint writer: writes checkpoints in a thread while training continues.

    `snapshot` copies the current state and returns the work that is left. It returns None where the
    state can only be saved at once. It is not called before the work of the last call has ended, so
    there is at most one copy. Every method is for the loop's thread. `finish` raises there what the
    work raised.
    """

    def __init__(self, snapshot: Callable[[Any], PendingSave | None]) -> None:
        self._snapshot = snapshot
        self._work: PendingSave | None = None
        self._thread: threading.Thread | None = None
        self._recorded = False
        self._error: BaseException | None = None

    def begin(self, progress: Any) -> bool:
        """Copy the state and the loop's progress, and start to write them.

        Return whether it started.
        """
        assert self._work is None, "two saves would overlap"
        self._work = self._snapshot(progress)
        if self._work is None:
            return False
        self._recorded, self._error = False, None
        # A daemon, as a second Ctrl-C must end the process at once. What is cut short is not
        # published.
        self._thread = start_thread(self._run, self._work, name="det-saving")
        return True

    @property
    def ended(self) -> bool:
        """Whether `finish` has something to do and would not wait."""
        return self._thread is not None and not self._thread.is_alive()

    def finish(self) -> bool:
        """Wait, on every rank, for what `begin` started.

        Return whether the driver has recorded it.
        """
        if self._work is None or self._thread is None:
            return False
        self._thread.join()
        work, self._work, self._thread = self._work, None, None
        if self._error is not None:
            raise self._error
        work.ended()
        return self._recorded

    def close(self) -> None:
        """Wait, after training has failed, so that the checkpoint is whole.

        Its own error is only logged.
        """
        if self._thread is not None:
            self._thread.join()
            self._work = self._thread = None
            if self._error is not None:
                logger.warning("the checkpoint that was being written is lost: %s", self._error)

    def _run(self, work: PendingSave) -> None:
        try:
            self._recorded = work.run()
        except BaseException as error:
            self._error = error

"""One piece of work at a time beside training, in a thread: a checkpoint that is written while batches go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What `run` does in the thread, to return whether the driver recorded it, and what `ended` does afterwards in the loop."""

    run: Callable[[], bool]
    ended: Callable[[], None]


class Beside:
    """Writes one checkpoint after the other beside training.

    `take` copies the state of this moment and returns the work that is left, or None where it can only be saved at once; it
    is not called before the work of the last time has ended, so that there is one copy at most. Every method is for the
    loop's thread. What the work raises is raised there, by `settle`.
    """

    def __init__(self, take: Callable[[Any], Work | None]) -> None:
        self._take = take
        self._work: Work | None = None
        self._thread: threading.Thread | None = None
        self._recorded = False
        self._error: BaseException | None = None

    def begin(self, progress: Any) -> bool:
        """Take the state, with what the loop knows of it, and begin to write it; return whether that is done here."""
        assert self._work is None, "two saves would overlap"
        self._work = self._take(progress)
        if self._work is None:
            return False
        self._recorded, self._error = False, None
        # a daemon, as a second Ctrl-C means now: what is cut short is not published
        self._thread = threading.Thread(target=self._run, args=(self._work,), name="det-saving", daemon=True)
        self._thread.start()
        return True

    @property
    def ended(self) -> bool:
        """Whether there is something to settle that would not be waited for."""
        return self._thread is not None and not self._thread.is_alive()

    def settle(self) -> bool:
        """Wait for what was begun, on every rank; return whether there was something that the driver has recorded."""
        if self._work is None or self._thread is None:
            return False
        self._thread.join()
        work, self._work, self._thread = self._work, None, None
        if self._error is not None:
            raise self._error
        work.ended()
        return self._recorded

    def close(self) -> None:
        """Wait for what an error of training left behind, so that it is whole; an error of its own is not the cause."""
        if self._thread is not None:
            self._thread.join()
            self._work = self._thread = None
            if self._error is not None:
                logger.warning("the checkpoint that was being written is lost: %s", self._error)

    def _run(self, work: Work) -> None:
        try:
            self._recorded = work.run()
        except BaseException as error:
            self._error = error

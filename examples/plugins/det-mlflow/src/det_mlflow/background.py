"""Work that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue

Job = Callable[[], object]


class Background:
    """Does jobs in their order, in a thread of its own.

    A server may be slow, and a driver has better things to do.

    What goes wrong is raised by the next call, each message once; later jobs are done all the same.
    """

    def __init__(self) -> None:
        self._jobs: Queue[Job | None] = Queue()
        self._errors: Queue[Exception] = Queue()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._work, daemon=True, name="det-mlflow")
        self._thread.start()

    def do(self, job: Job) -> None:
        """Take a job."""
        self._jobs.put(job)
        self._tell()

    def close(self, seconds: float) -> None:
        """Wait for what is left to do. Raises TimeoutError where that takes longer."""
        self._jobs.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(
                f"MLflow has not taken everything within {seconds:g} s; {self._jobs.qsize()}"
                " messages are lost"
            )
        self._tell()

    def _work(self) -> None:
        while job := self._jobs.get():
            try:
                job()
            except Exception as error:
                self._errors.put(error)

    def _tell(self) -> None:
        while not self._errors.empty():
            error = self._errors.get()
            if str(error) not in self._told:
                self._told.add(str(error))
                raise error

"""The driver, seen from a worker across a connection."""

from __future__ import annotations

import _thread
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import wire
from .errors import DetError
from .host import Flag, HostLost, Outcome, Target, TrialHost
from .manifest import Manifest
from .protocol import (
    Answer,
    AskBest,
    AskTarget,
    CameFrom,
    Checkpointed,
    Chose,
    Completed,
    Deleted,
    Finished,
    Meet,
    Preempt,
    Progressed,
    Question,
    Reported,
    Said,
    Status,
    Validated,
    Word,
    decode_reply,
    encode,
)

LOST = "the driver is gone"


class RemoteHost(TrialHost):
    """Asks and tells over a connection; a thread listens for answers and for a preemption.

    When the connection breaks, `preempted` is raised, `on_lost` is called in that thread, and every method raises HostLost
    from then on. `target` is the first one, where it is known. With `unrecorded`, a checkpoint is not waited for where a
    question follows; it is called, in that thread, with one that has no answer when the connection breaks.
    """

    def __init__(
        self,
        connection: wire.Connection,
        on_lost: Callable[[], None] | None = None,
        target: Target | None = None,
        unrecorded: Callable[[Manifest, str], None] | None = None,
    ) -> None:
        self.preempted = Flag()
        self._on_lost, self._known, self._unrecorded = on_lost, target, unrecorded
        # The number of a word that told of a checkpoint, and that, until it is answered; and the error in the answer.
        self._unsure: tuple[int, Manifest, str] | None = None
        self._error = ""
        self._closing = False
        self._connection = connection
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._number = 0  # of the newest word
        self._lost = False
        self._over = threading.Lock()  # held by the thread that listens
        self._over.acquire()
        _thread.start_new_thread(self._listen, ())  # at once: `Thread.start` waits until it runs

    def target(self) -> Target:
        known, self._known = self._known, None
        return known or self._aimed(self._ask(AskTarget()))

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self._tell(Reported(group, batches, dict(metrics)))

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        return self._aimed(self._ask(Validated(batches, dict(metrics), length)))

    def completed(self, batches: int, metrics: Mapping[str, Any], length: int) -> Target:
        return self._aimed(self._ask(Completed(batches, dict(metrics), length)))

    def deleted(self, uuid: str) -> None:
        self._ask(Deleted(uuid))

    def checkpointed(self, manifest: Manifest, storage: str) -> bool:
        if self._unrecorded is None or not self.asks_next:
            self._ask(Checkpointed(manifest, storage))
            return True
        with self._lock:
            self._unsure = self._number + 1, manifest, storage
            self._tell(Checkpointed(manifest, storage))
        return False

    def report_at(self, fraction: float, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self._tell(Reported(group, batches, dict(metrics), fraction))

    def progress(self, fraction: float) -> None:
        self._tell(Progressed(fraction))

    def status(self, text: str) -> None:
        self._tell(Status(text))

    def finished(self, outcome: Outcome, message: str = "", traceback: str = "", *, wait: bool = True) -> None:
        """Say how the process ended; `wait` until the driver knows, where others may say it later that fail of it."""
        (self._ask if wait else self._tell)(Finished(outcome, message, traceback))

    def meet(self, address: tuple[str, int] | None = None, timeout: float | None = None) -> tuple[str, int]:
        """Tell where the ranks of the run meet, as their chief, or wait to be told; TimeoutError after `timeout` seconds."""
        meeting = self._ask(Meet(address), timeout).address
        assert meeting is not None
        return meeting

    def chose(self, backend: str) -> None:
        """Tell which backend reduces the gradients."""
        self._tell(Chose(backend))

    def came_from(self, origin: dict[str, Any]) -> None:
        """Tell what the run runs in."""
        self._tell(CameFrom(origin))

    def best_validation(self) -> float | None:
        return self._ask(AskBest()).value

    def close(self) -> None:
        self._closing = True
        self._connection.close()
        if self._over.acquire(timeout=5):
            self._over.release()

    def _aimed(self, answer: Answer) -> Target:
        assert answer.target is not None
        return answer.target

    def _ask(self, question: Question, timeout: float | None = None) -> Answer:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            number = self._tell(question)
            while True:
                try:
                    answer = self._answers.get(
                        timeout=None if deadline is None else max(0.0, deadline - time.monotonic())
                    )
                except queue.Empty:
                    raise TimeoutError from None
                if answer is None:
                    self._answers.put(None)
                    raise HostLost(LOST)
                if answer.number == number:  # the late answer to a question that was given up is nobody's
                    break
        if error := self._error or answer.error:
            raise DetError(error)
        return answer

    def _tell(self, word: Word) -> int:
        """Send a word under the next number, which is returned."""
        with self._lock:
            if self._lost:
                raise HostLost(LOST)
            self._number += 1
            try:
                self._connection.send(encode(Said(self._number, word)))
            except (wire.ConnectionLost, TimeoutError, OSError) as error:
                raise HostLost(LOST) from error
            return self._number

    def _listen(self) -> None:
        try:
            while True:
                reply = decode_reply(self._connection.recv())
                if isinstance(reply, Preempt):
                    self._raise(reply.reason)
                elif self._unsure is not None and reply.number == self._unsure[0]:
                    self._unsure, self._error = None, reply.error
                else:
                    self._answers.put(reply)
        except (wire.ConnectionLost, OSError, ValueError):
            gone, self._lost = not self._closing, True
            self._raise(LOST)
            self._answers.put(None)
            if gone and self._on_lost:
                self._on_lost()
            if gone and self._unsure and self._unrecorded:
                self._unrecorded(*self._unsure[1:])
        finally:
            self._over.release()

    def _raise(self, reason: str) -> None:
        self.preempted.reason = reason
        self.preempted.raised = True

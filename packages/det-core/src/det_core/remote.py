"""The driver, seen from a worker across a connection."""

from __future__ import annotations

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
    from then on.
    """

    def __init__(self, connection: wire.Connection, on_lost: Callable[[], None] | None = None) -> None:
        self.preempted = Flag()
        self._on_lost = on_lost
        self._closing = False
        self._connection = connection
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._number = 0  # of the newest word
        self._lost = False
        self._listener = threading.Thread(target=self._listen, name="det-driver", daemon=True)
        self._listener.start()

    def target(self) -> Target:
        return self._aimed(self._ask(AskTarget()))

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self._tell(Reported(group, batches, dict(metrics)))

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        return self._aimed(self._ask(Validated(batches, dict(metrics), length)))

    def completed(self, batches: int, metrics: Mapping[str, Any], length: int) -> Target:
        return self._aimed(self._ask(Completed(batches, dict(metrics), length)))

    def deleted(self, uuid: str) -> None:
        self._ask(Deleted(uuid))

    def checkpointed(self, manifest: Manifest, storage: str) -> None:
        self._ask(Checkpointed(manifest, storage))

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
        self._listener.join(timeout=5)

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
        if answer.error:
            raise DetError(answer.error)
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
                else:
                    self._answers.put(reply)
        except (wire.ConnectionLost, OSError, ValueError):
            self._lost = True
            self._raise(LOST)
            self._answers.put(None)
            if self._on_lost and not self._closing:
                self._on_lost()

    def _raise(self, reason: str) -> None:
        self.preempted.reason = reason
        self.preempted.raised = True

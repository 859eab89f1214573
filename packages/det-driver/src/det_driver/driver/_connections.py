"""What a driver hears of its workers, and what it answers: each word is taken in the driver's own thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from det_core import wire
from det_core.errors import DetError
from det_core.host import Outcome
from det_core.protocol import (
    Answer,
    AskBest,
    AskTarget,
    Checkpointed,
    Chose,
    Completed,
    Deleted,
    Finished,
    Hello,
    Meet,
    Preempt,
    Progressed,
    Reported,
    Status,
    Validated,
    Welcome,
    Word,
    decode_word,
    encode,
    refusal,
    welcome,
)

from ._state import State
from ._trials import ActiveRun, LiveTrial

_HELLO_SECONDS = 30


class Connections:
    """The workers of one experiment: `running` are the trials by their runs, `inbox` takes what the driver is to do."""

    def __init__(
        self, state: State, running: Mapping[int, LiveTrial], inbox: Callable[[Callable[[], None]], None]
    ) -> None:
        self._state, self._running, self._inbox = state, running, inbox

    def serve(self, connection: wire.Connection) -> None:
        """Read one worker's words into the inbox; runs in the connection's own thread."""
        try:
            hello = decode_word(connection.recv(timeout=_HELLO_SECONDS))
            if not isinstance(hello, Hello):
                return
            ours = welcome()
            if refused := refusal(hello, ours):
                self._inbox(lambda: self._refused(hello, refused))
                _send(connection, ours)
                connection.close()
                return
            _send(connection, ours)
            self._inbox(lambda: self._connected(hello, connection))
            while True:
                word = decode_word(connection.recv())
                self._inbox(lambda word=word: self._hear(hello, connection, word))  # type: ignore[misc]
        except (wire.ConnectionLost, TimeoutError, OSError, msgspec.DecodeError):
            connection.close()

    def _connected(self, hello: Hello, connection: wire.Connection) -> None:
        live = self._running.get(hello.run_id)
        if live is None or live.active is None:
            connection.close()
            return
        live.active.connections.append(connection)
        if live.active.preempting:
            _send(connection, Preempt("the run is to end"))

    def _refused(self, hello: Hello, reason: str) -> None:
        """Take it as the last word of a worker that it speaks another protocol; it ends of itself."""
        live = self._running.get(hello.run_id)
        if live is not None and live.active is not None:
            live.active.finished(hello.rank, Finished(Outcome.MISTAKE, reason))

    def _hear(self, hello: Hello, connection: wire.Connection, word: Word) -> None:
        live = self._running.get(hello.run_id)
        if live is None or live.active is None:
            return
        if isinstance(word, Meet):
            _meet(live.active, connection, word.address)
            return
        try:
            reply = _answer(self._state, live, live.active, word, hello.rank)
        except DetError as error:
            reply = Answer(error=str(error))
        if reply is not None:
            _send(connection, reply)


def _answer(state: State, live: LiveTrial, active: ActiveRun, word: Word, rank: int) -> Answer | None:
    """Take the word of a worker, or of one of its ranks; return the answer to a question, None to what was only told."""
    match word:
        case AskTarget():
            return Answer(target=state.target(live))
        case Validated():
            return Answer(target=state.validated(live, active, word.batches, word.metrics, word.length))
        case Completed():
            # The validation's metrics may have been reported before; the one of the searcher must not replace them.
            fresh = active.validated_at != word.batches
            return Answer(target=state.validated(live, active, word.batches, word.metrics, word.length, report=fresh))
        case Checkpointed():
            state.checkpointed(live, active, word.manifest, word.storage)
            return Answer()
        case Deleted():
            state.store.checkpoints.mark_deleted(word.uuid)
            return Answer()
        case AskBest():
            return Answer(value=state.best)
        case Finished():
            active.finished(rank, word)
            return Answer()
        case Reported():
            state.reported(live, active, word.group, word.batches, word.metrics)
        case Progressed():
            live.progress = word.fraction
            state.store.trials.update(live.id, progress=word.fraction)
        case Chose():
            state.store.runs.chose(active.run.id, word.backend)
        case Status():
            live.status = word.text
    return None


def preempt(active: ActiveRun, reason: str) -> None:
    """Ask the workers of a run that are connected, and those that will be, to save and end."""
    active.preempting = True
    for connection in active.connections:
        _send(connection, Preempt(reason))


def _meet(active: ActiveRun, connection: wire.Connection, address: tuple[str, int] | None) -> None:
    """Pass on where the ranks of a run meet; those that ask before it is known are told then."""
    active.meeting = address or active.meeting
    active.waiting.append(connection)
    if active.meeting is not None:
        for each in active.waiting:
            _send(each, Answer(address=active.meeting))
        active.waiting.clear()


def _send(connection: wire.Connection, reply: Answer | Preempt | Welcome) -> None:
    try:
        connection.send(encode(reply))
    except (wire.ConnectionLost, TimeoutError, OSError):
        connection.close()

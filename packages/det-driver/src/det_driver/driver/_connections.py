"""What a driver hears of its workers, and what it answers: each word is taken in the driver's own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    Question,
    Reported,
    Said,
    Status,
    Validated,
    Welcome,
    Word,
    decode_said,
    encode,
    refusal,
    welcome,
)

from ._recover import record_checkpoint
from ._state import State
from ._trials import ActiveRun, LiveTrial

_HELLO_SECONDS = 30


@dataclass(frozen=True)
class Came:
    """A worker has connected."""

    hello: Hello
    connection: wire.Connection


@dataclass(frozen=True)
class Refused:
    """A worker that speaks another protocol has connected; it ends of itself."""

    hello: Hello
    reason: str


@dataclass(frozen=True)
class Heard:
    """A worker has said something."""

    hello: Hello
    connection: wire.Connection
    said: Said


def serve(connection: wire.Connection, inbox: Callable[[Came | Refused | Heard], None]) -> None:
    """Read one worker's words into the inbox; runs in the connection's own thread."""
    try:
        hello = decode_said(connection.recv(timeout=_HELLO_SECONDS))
        if not isinstance(hello, Hello):
            return
        ours = welcome()
        if refused := refusal(hello, ours):
            inbox(Refused(hello, refused))
            send(connection, ours)
            connection.close()
            return
        send(connection, ours)
        inbox(Came(hello, connection))
        while isinstance(said := decode_said(connection.recv()), Said):
            inbox(Heard(hello, connection, said))
    except (wire.ConnectionLost, TimeoutError, OSError, msgspec.DecodeError):
        connection.close()


def came(active: ActiveRun, event: Came) -> None:
    """Take up a worker of a run; one that comes late is told at once that the run is to end."""
    active.connections.append(event.connection)
    if active.preempting:
        send(event.connection, Preempt("the run is to end"))


def heard(state: State, live: LiveTrial, active: ActiveRun, event: Heard) -> None:
    """Take a worker's word in a turn, and answer when that is committed."""
    word, number = event.said.word, event.said.number
    if isinstance(word, Meet):
        _meet(active, event.connection, number, word.address)
        return
    with state.turn():
        answer = _answer(state, live, active, word, event.hello.rank)
        if answer is not None:
            reply = msgspec.structs.replace(answer, number=number)
            state.then(lambda: send(event.connection, reply))


def broke(active: ActiveRun, event: Heard, error: Exception) -> bool:
    """Take it as the run's own mistake that its word could not be taken; return whether it hears of that, as it asked."""
    message = str(error) if isinstance(error, DetError) else f"{type(error).__name__}: {error}"
    word = event.said.word
    if isinstance(word, Question):
        send(event.connection, Answer(event.said.number, error=message))
        return True
    said = f"its word {type(word).__name__!r} could not be taken: {message}"
    active.finished(event.hello.rank, Finished(Outcome.MISTAKE, said))
    return False


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
            checkpoint = record_checkpoint(state.store, live.id, active.run.id, word)
            state.observe("det_checkpoint_saved", trial=state.row(live), checkpoint=checkpoint)
            return Answer()
        case Deleted():
            state.store.checkpoints.mark_deleted(word.uuid)
            return Answer()
        case AskBest():
            return Answer(value=state.best)
        case Finished():
            state.then(lambda: active.finished(rank, word))
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
        send(connection, Preempt(reason))


def _meet(active: ActiveRun, connection: wire.Connection, number: int, address: tuple[str, int] | None) -> None:
    """Pass on where the ranks of a run meet; those that ask before it is known are told then."""
    active.meeting = address or active.meeting
    active.waiting.append((connection, number))
    if active.meeting is not None:
        for each, question in active.waiting:
            send(each, Answer(question, address=active.meeting))
        active.waiting.clear()


def send(connection: wire.Connection, reply: Answer | Preempt | Welcome) -> None:
    """Send to a worker; one that is gone is heard of by its end."""
    try:
        connection.send(encode(reply))
    except (wire.ConnectionLost, TimeoutError, OSError):
        connection.close()

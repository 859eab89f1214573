"""What a driver hears of its workers, and what it answers: each word is taken in the driver's own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from det_core import protocol, wire
from det_core.errors import DetError
from det_core.host import Outcome

from ._recover import record_checkpoint
from ._state import State
from ._trials import ActiveRun, LiveTrial

_HELLO_SECONDS = 30


@dataclass(frozen=True)
class Came:
    """A worker has connected."""

    hello: protocol.Hello
    connection: wire.Connection


@dataclass(frozen=True)
class Refused:
    """A worker that speaks another protocol has connected; it ends of itself."""

    hello: protocol.Hello
    reason: str


@dataclass(frozen=True)
class Heard:
    """A worker has said something."""

    hello: protocol.Hello
    connection: wire.Connection
    said: protocol.Said


def serve(connection: wire.Connection, inbox: Callable[[Came | Refused | Heard], None]) -> None:
    """Read one worker's words into the inbox; runs in the connection's own thread."""
    try:
        hello = protocol.decode_said(connection.recv(timeout=_HELLO_SECONDS))
        if not isinstance(hello, protocol.Hello):
            return
        ours = protocol.welcome()
        if refused := protocol.refusal(hello, ours):
            inbox(Refused(hello, refused))
            send(connection, ours)
            connection.close()
            return
        send(connection, ours)
        inbox(Came(hello, connection))
        while isinstance(said := protocol.decode_said(connection.recv()), protocol.Said):
            inbox(Heard(hello, connection, said))
    except (wire.ConnectionLost, TimeoutError, OSError, msgspec.DecodeError):
        connection.close()


def came(active: ActiveRun, event: Came) -> None:
    """Take up a worker of a run; one that comes late is told at once that the run is to end."""
    active.connections.append(event.connection)
    if active.preempting:
        send(event.connection, protocol.Preempt("the run is to end"))


def heard(state: State, live: LiveTrial, active: ActiveRun, event: Heard) -> None:
    """Take a worker's word in a turn, and answer when that is committed."""
    word, number = event.said.word, event.said.number
    if isinstance(word, protocol.Meet):
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
    if isinstance(word, protocol.Question):
        send(event.connection, protocol.Answer(event.said.number, error=message))
        return True
    said = f"its word {type(word).__name__!r} could not be taken: {message}"
    active.finished(event.hello.rank, protocol.Finished(Outcome.MISTAKE, said))
    return False


def _answer(state: State, live: LiveTrial, active: ActiveRun, word: protocol.Word, rank: int) -> protocol.Answer | None:
    """Take the word of a worker, or of one of its ranks; return the answer to a question, None to what was only told."""
    match word:
        case protocol.AskTarget():
            return protocol.Answer(target=state.target(live))
        case protocol.Validated():
            return protocol.Answer(target=state.validated(live, active, word.batches, word.metrics, word.length))
        case protocol.Completed():
            # The validation's metrics may have been reported before; the one of the searcher must not replace them.
            fresh = active.validated_at != word.batches
            target = state.validated(live, active, word.batches, word.metrics, word.length, report=fresh)
            return protocol.Answer(target=target)
        case protocol.Checkpointed():
            checkpoint = record_checkpoint(state.store, live.id, active.run.id, word)
            state.observe("det_checkpoint_saved", trial=state.row(live), checkpoint=checkpoint)
            return protocol.Answer()
        case protocol.Deleted():
            state.store.checkpoints.mark_deleted(word.uuid)
            return protocol.Answer()
        case protocol.AskBest():
            return protocol.Answer(value=state.best)
        case protocol.Finished():
            state.then(lambda: active.finished(rank, word))
            return protocol.Answer()
        case protocol.Reported():
            state.reported(live, active, word.group, word.batches, word.metrics)
        case protocol.Progressed():
            live.progress = word.fraction
            state.store.trials.update(live.id, progress=word.fraction)
        case protocol.Chose():
            state.store.runs.chose(active.run.id, word.backend)
        case protocol.Status():
            pass  # nobody asks for it
    return None


def preempt(active: ActiveRun, reason: str) -> None:
    """Ask the workers of a run that are connected, and those that will be, to save and end."""
    active.preempting = True
    for connection in active.connections:
        send(connection, protocol.Preempt(reason))


def _meet(active: ActiveRun, connection: wire.Connection, number: int, address: tuple[str, int] | None) -> None:
    """Pass on where the ranks of a run meet; those that ask before it is known are told then."""
    active.meeting = address or active.meeting
    active.waiting.append((connection, number))
    if active.meeting is not None:
        for each, question in active.waiting:
            send(each, protocol.Answer(question, address=active.meeting))
        active.waiting.clear()


def send(connection: wire.Connection, reply: protocol.Answer | protocol.Preempt | protocol.Welcome) -> None:
    """Send to a worker; one that is gone is heard of by its end."""
    try:
        connection.send(protocol.encode(reply))
    except (wire.ConnectionLost, TimeoutError, OSError):
        connection.close()

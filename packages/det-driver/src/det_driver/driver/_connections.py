"""What a driver hears of its workers, and what it answers: each word is taken in the driver's own thread, once."""

from __future__ import annotations

from det_core import protocol
from det_core.errors import DetError
from det_core.host import Outcome

from ..engines import Engine, Spoke
from ._recover import record_checkpoint
from ._state import State
from ._trials import ActiveRun, LiveTrial


def heard(state: State, engine: Engine, live: LiveTrial, active: ActiveRun, event: Spoke) -> None:
    """Take a worker's word in a turn, and answer when that is committed; one that was taken before is only answered."""
    number = event.said.number
    with state.turn():
        if number > active.heard.get(event.link, 0):
            taken = {**active.heard, event.link: number}
            state.store.runs.heard(active.run.id, taken)
            state.adopt(lambda: setattr(active, "heard", taken))
            answer = _answer(state, live, active, event)
        else:
            answer = _again(state, live, active, event)
        if answer is not None:
            state.then(lambda: _say(engine, active, event, answer))


def _say(engine: Engine, active: ActiveRun, event: Spoke, answer: protocol.Answer) -> None:
    engine.answer(event.run, event.link, answer)
    active.told[event.link] = answer.number  # that says, too, that what came before is committed


def broke(engine: Engine, active: ActiveRun, event: Spoke, error: Exception) -> bool:
    """Take it as the run's own mistake that its word could not be taken; return whether it hears of that, as it asked."""
    message = str(error) if isinstance(error, DetError) else f"{type(error).__name__}: {error}"
    word = event.said.word
    if isinstance(word, protocol.Question):
        engine.answer(event.run, event.link, protocol.Answer(event.said.number, error=message))
        return True
    said = f"its word {type(word).__name__!r} could not be taken: {message}"
    active.finished(event.rank, protocol.Finished(Outcome.MISTAKE, said))
    engine.taken(event.run, event.link, event.said.number)
    return False


def _answer(state: State, live: LiveTrial, active: ActiveRun, event: Spoke) -> protocol.Answer | None:
    """Take the word of a worker, or of one of its ranks; return the answer to a question, None to what was only told."""
    word, number = event.said.word, event.said.number
    match word:
        case protocol.Validated():
            target = state.validated(live, active, word.batches, word.metrics, word.length)
            return protocol.Answer(number, target)
        case protocol.Completed():
            # The validation's metrics may have been reported before; the one of the searcher must not replace them.
            fresh = active.validated_at != word.batches
            target = state.validated(live, active, word.batches, word.metrics, word.length, report=fresh)
            return protocol.Answer(number, target)
        case protocol.Checkpointed():
            checkpoint = record_checkpoint(state.store, live.id, active.run.id, word)
            state.observe("det_checkpoint_saved", of=live.id, checkpoint=checkpoint)
        case protocol.Deleted():
            state.store.checkpoints.mark_deleted(word.uuid)
        case protocol.Reported():
            state.reported(live, active, word.group, word.batches, word.metrics)
            if word.fraction is not None:
                _progressed(state, live, word.fraction)
        case protocol.Progressed():
            _progressed(state, live, word.fraction)
        case protocol.Chose():
            state.store.runs.chose(active.run.id, word.backend)
        case protocol.CameFrom():
            state.store.runs.came_from(active.run.id, word.origin)
    return _again(state, live, active, event)


def _progressed(state: State, live: LiveTrial, fraction: float) -> None:
    live.progress = fraction
    state.store.trials.update(live.id, progress=fraction)


def _again(state: State, live: LiveTrial, active: ActiveRun, event: Spoke) -> protocol.Answer | None:
    """Answer a question that is taken: the answer may have been lost with a driver."""
    word, number = event.said.word, event.said.number
    match word:
        case protocol.AskTarget():
            return protocol.Answer(number, state.target(live))
        case protocol.AskBest():
            return protocol.Answer(number, value=state.best)
        case protocol.Validated() | protocol.Completed():
            return protocol.Answer(number, state.target(live, state.is_best(word.metrics, again=True)))
        case protocol.Checkpointed() | protocol.Deleted():
            return protocol.Answer(number)
        case protocol.Finished():
            state.adopt(lambda: active.finished(event.rank, word))
            return protocol.Answer(number)
    return None

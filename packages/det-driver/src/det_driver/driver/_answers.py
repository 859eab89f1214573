"""What a driver answers to the words of a worker."""

from __future__ import annotations

from det_core.protocol import (
    Answer,
    AskBest,
    AskTarget,
    Checkpointed,
    Chose,
    Completed,
    Deleted,
    Finished,
    Progressed,
    Reported,
    Status,
    Validated,
    Word,
)

from ._state import State
from ._trials import Active, Live


def answer(state: State, live: Live, active: Active, word: Word, rank: int) -> Answer | None:
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

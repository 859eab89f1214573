"""How a driver handles the messages of its workers, each exactly once, in the driver's thread."""

from __future__ import annotations

import time
from functools import partial

from det_core.errors import DetError, StoreError
from det_core.train.host import Outcome
from det_node import protocol

from ..engines import Engine, WorkerMessage
from ..store import account_in
from ._alerts import ExperimentAlerts
from ._recover import record_checkpoint
from ._state import State
from ._trials import ActiveRun, LiveTrial


def handle_message(
    state: State,
    engine: Engine,
    alerts: ExperimentAlerts,
    live: LiveTrial,
    active: ActiveRun,
    event: WorkerMessage,
) -> None:
    """Handle a worker's message in a transaction, and send the reply after the commit.

    A message that was handled before only gets its reply.
    """
    number = event.envelope.number
    with state.transaction():
        if number > active.acked.get(event.link, 0):
            acked = {**active.acked, event.link: number}
            state.store.runs.set_acked(active.run.id, acked)
            state.apply(partial(_note_handled, active, acked))
            message = event.envelope.message
            if isinstance(message, protocol.Alerted):
                alerts.report_custom(live.id, message.title, message.description, message.level)
            reply = _handle(state, live, active, event)
        else:
            reply = _repeat_reply(state, live, active, event)
        if reply is not None:
            state.after_commit(lambda: _send_reply(engine, active, event, reply))


def _note_handled(active: ActiveRun, acked: dict[int, int]) -> None:
    active.acked = acked
    active.silence.end(time.monotonic())


def _send_reply(
    engine: Engine, active: ActiveRun, event: WorkerMessage, reply: protocol.Reply
) -> None:
    engine.reply(event.run, event.link, reply)
    # The reply also acknowledges all earlier messages.
    active.replied[event.link] = reply.number


def report_failed_message(
    engine: Engine, active: ActiveRun, event: WorkerMessage, error: Exception
) -> bool:
    """Count a message that could not be handled as a mistake of its run.

    Returns whether the run learns of it, which it does for a request.
    """
    failure = str(error) if isinstance(error, DetError) else f"{type(error).__name__}: {error}"
    message = event.envelope.message
    if isinstance(message, protocol.Request):
        engine.reply(event.run, event.link, protocol.Reply(event.envelope.number, error=failure))
        return True
    text = f"its message {type(message).__name__!r} could not be handled: {failure}"
    active.finished(event.rank, protocol.Finished(Outcome.MISTAKE, text))
    active.refused = True
    engine.acknowledge(event.run, event.link, event.envelope.number)
    return False


def _handle(
    state: State, live: LiveTrial, active: ActiveRun, event: WorkerMessage
) -> protocol.Reply | None:
    """Handle a message of a worker. Return the reply to a request, or None for an event."""
    message, number = event.envelope.message, event.envelope.number
    match message:
        case protocol.Validated():
            target = state.validated(live, active, message.batches, message.metrics, message.length)
            return protocol.Reply(number, target)
        case protocol.Completed():
            # The metrics of this validation may have been reported before. The searcher's metric
            # alone must not replace them.
            fresh = active.validated_at != message.batches
            target = state.validated(
                live, active, message.batches, message.metrics, message.length, report=fresh
            )
            return protocol.Reply(number, target)
        case protocol.Checkpointed():
            _check_own(state, message.manifest.uuid)
            checkpoint = record_checkpoint(state.store, live.id, active.run.id, message)
            state.observe("det_checkpoint_saved", of=live.id, checkpoint=checkpoint)
        case protocol.Deleted():
            # Otherwise a version could be added between the check and the commit.
            _check_own(state, message.uuid)
            state.enter_until_commit(state.store.models.deleting())
            state.store.models.check_free([message.uuid])
            state.store.checkpoints.mark_deleted(message.uuid)
        case protocol.Reported():
            fraction, until = message.fraction, live.plan.until
            if fraction is None and message.group == "training" and state.unit == "batches":
                # A script need not report its progress.
                fraction = min(1.0, message.batches / until) if until else None
            # One statement stores the position and the progress.
            progress = None if fraction is None else _note_progress(live, fraction)
            state.reported(
                live, active, message.group, message.batches, message.metrics, progress=progress
            )
        case protocol.Progressed():
            _progressed(state, live, message.fraction)
        case protocol.Status():
            state.observe("det_trial_status", of=live.id, status=message.text)
        case protocol.TrialNotice():
            state.report_notice(live, message.text)
        case protocol.BackendChosen():
            state.store.runs.chose(active.run.id, message.backend)
        case protocol.Origin():
            state.store.runs.record_origin(active.run.id, message.origin)
    return _repeat_reply(state, live, active, event)


def _check_own(state: State, uuid: str) -> None:
    """Raise StoreError for a checkpoint of another owner's experiment, which a run may not name.

    Where all code has the same rights, it could change what it likes.
    """
    if account_in(state.store, state.id) is None:
        return
    try:
        found = state.store.checkpoints.get(uuid)
    except StoreError:
        return
    if found.uuid == uuid and state.store.trials.get(found.trial_id).experiment_id != state.id:
        raise StoreError(f"checkpoint {uuid} is of another experiment")


def _progressed(state: State, live: LiveTrial, fraction: float) -> None:
    state.store.trials.update(live.id, progress=_note_progress(live, fraction))


def _note_progress(live: LiveTrial, fraction: float) -> float:
    if live.progress_to is not None and live.progress_to == live.plan.until:
        # A run that was started again repeats progress that is known.
        fraction = max(fraction, live.progress)
    live.progress, live.progress_to = fraction, live.plan.until
    return fraction


def _repeat_reply(
    state: State, live: LiveTrial, active: ActiveRun, event: WorkerMessage
) -> protocol.Reply | None:
    """Return the reply to a request that is committed, as a lost driver may not have sent it."""
    message, number = event.envelope.message, event.envelope.number
    match message:
        case protocol.AskTarget():
            return protocol.Reply(number, state.target(live))
        case protocol.AskBest():
            return protocol.Reply(number, value=state.best)
        case protocol.Validated() | protocol.Completed():
            return protocol.Reply(
                number, state.target(live, state.is_best(message.metrics, again=True))
            )
        case protocol.Checkpointed() | protocol.Deleted():
            return protocol.Reply(number)
        case protocol.Finished():
            state.apply(lambda: active.finished(event.rank, message, event.link))
            return protocol.Reply(number)
    return None

"""What becomes of a trial when its run has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from det_core.host import Outcome

from ..search import Exit
from ..store import ExperimentState, TrialState
from ._logs import cancels_retries
from ._state import State
from ._trials import Active, Live


@dataclass
class Failures:
    """What went wrong in an experiment, for the last words.

    `mistake` says that it was in what was asked, not in the training; `resumable` that the experiment can go on when what
    blocks it is mended. `declined` are the messages of trials that could not work with their hyperparameters.
    """

    messages: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    traceback: str = ""
    mistake: bool = False
    resumable: bool = False


class Settle:
    """Decides by a run's last word and its process's exit status.

    `wish` tells what the experiment is to become, if anything; `block` ends it until something is mended.
    """

    def __init__(
        self, state: State, failures: Failures, wish: Callable[[], ExperimentState | None], block: Callable[[str], None]
    ) -> None:
        self._state, self._failures, self._wish, self._block = state, failures, wish, block

    def __call__(self, live: Live, active: Active, status: int) -> None:
        if active.outcome is None and status == 0 and not self._state.trial_class:
            active.outcome = Outcome.COMPLETED
        match active.outcome:
            case Outcome.COMPLETED:
                self._completed(live)
            case Outcome.USER_STOPPED:
                self._state.exit(live, Exit.USER_STOPPED, TrialState.COMPLETED)
            case Outcome.INVALID_HP:
                self._failures.declined.append(f"trial {live.id}: {active.message}")
                self._state.exit(live, Exit.INVALID_HP, TrialState.INVALID_HP, active.message)
            case Outcome.PREEMPTED if self._asked(live, active) or self._saved(live, active):
                self._preempted(live)
            case Outcome.BLOCKED:
                self._blocked(live, active.message)
            case Outcome.MISTAKE:
                self._failures.mistake = True
                self._failed_for_good(live, active.message, "")
            case _:
                self._failed(live, active, status)

    def _asked(self, live: Live, active: Active) -> bool:
        return active.preempting or live.plan.closed or self._wish() is not None

    def _saved(self, live: Live, active: Active) -> bool:
        """Whether a run that ended of itself, say by a signal, got any further: else it would be started for ever."""
        latest = self._state.row(live).latest_checkpoint
        if latest is None:
            return False
        saved = self._state.store.checkpoints.get(latest)
        return saved.run_id == active.run.id and saved.batches > active.run.first_batch

    def _completed(self, live: Live) -> None:
        if not live.plan.closed and not live.plan.wanted:
            self._to(live, TrialState.WAITING)
        elif not live.plan.closed and self._state.trial_class:
            self._to(live, TrialState.QUEUED)  # its target was raised while the run was ending
        else:
            self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)

    def _preempted(self, live: Live) -> None:
        if live.plan.closed:
            self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)
        elif self._wish() is ExperimentState.CANCELED:
            self._state.exit(live, Exit.CANCELED, TrialState.CANCELED)
        else:
            self._to(live, TrialState.PAUSED if self._wish() else TrialState.QUEUED)

    def _blocked(self, live: Live, message: str) -> None:
        live.blocked = self._failures.mistake = self._failures.resumable = True
        self._failures.messages.append(f"trial {live.id}: {message}")
        self._state.store.trials.update(live.id, state=TrialState.PAUSED, exit_reason=message)
        self._block(message)

    def _failed(self, live: Live, active: Active, status: int) -> None:
        if live.plan.closed or (self._wish() is not None and active.outcome is None):
            self._preempted(live)  # killed because it was asked for
            return
        message = active.message or exit_status(status)
        failure = (message, active.progressed_to)
        repeated = active.outcome is Outcome.ERROR and live.failure == failure
        live.failure = failure
        config = self._state.config
        if repeated or live.restarts >= config.max_restarts or cancels_retries(config, active.run.log_dir):
            self._failed_for_good(live, message, active.traceback)
            return
        live.restarts += 1
        self._state.store.trials.update(live.id, state=TrialState.QUEUED, restarts=live.restarts)

    def _failed_for_good(self, live: Live, message: str, trace: str) -> None:
        self._failures.messages.append(f"trial {live.id}: {message}")
        self._failures.traceback = trace or self._failures.traceback
        self._state.exit(live, Exit.ERRORED, TrialState.ERROR, message)

    def _to(self, live: Live, state: TrialState) -> None:
        self._state.rest(live, state)


def exit_status(status: int) -> str:
    """Say how a process ended; a negative status is a signal's number."""
    if status == 0:
        return "the process ended before the trial was complete; return from its methods, and let det end it"
    return f"the process was killed by signal {-status}" if status < 0 else f"the process exited with status {status}"

"""What becomes of a trial when its run has ended, and of an experiment when its trials have."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from det_core.config import ExperimentConfig, Single
from det_core.errors import did_you_mean
from det_core.host import Outcome
from det_core.launch import last_words

from ..search import Exit
from ..store import ExperimentState, TrialState
from ._state import State
from ._trials import GOOD, ActiveRun, LiveTrial, how_it_ended

MOST_SHOWN = 3
_TAIL = 1 << 16
MOST_FRUITLESS = 5
"""How many runs in a row may be taken from a trial before they got any further: the next one is a failure like others."""


@dataclass
class ExperimentFailures:
    """What went wrong in an experiment, for the last words.

    `mistake` says that it was in what was asked, not in the training; `resumable` that the experiment can go on when what
    blocks it is mended. `declined` are the messages of trials that could not work with their hyperparameters, `notices` what
    is to be known of an experiment that completed nevertheless.
    """

    messages: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    traceback: str = ""
    mistake: bool = False
    resumable: bool = False

    @property
    def reason(self) -> str:
        """Why the experiment ended as it did, in a line; empty where nothing went wrong."""
        shown = list(dict.fromkeys(self.messages or self.notices))
        more = f"; {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        return "; ".join(shown[:MOST_SHOWN]) + more


class Endings:
    """Decides, in a turn of the state, what ends, and as what, and notes what went wrong."""

    def __init__(self, state: State, failures: ExperimentFailures) -> None:
        self._state, self._failures = state, failures

    def settle(self, live: LiveTrial, active: ActiveRun, status: int) -> None:
        """Decide by a run's last word and its process's exit status what becomes of its trial."""
        if live.plan.exited is not None:
            return  # it was given up, and is over already
        if active.outcome is None and status == 0 and not self._state.trial_class:
            active.outcome = Outcome.COMPLETED
        if active.unstarted:
            self._state.rest(live, TrialState.QUEUED)  # it never ran: nothing is held against it
            return
        match active.outcome:
            case Outcome.COMPLETED:
                self._completed(live)
            case Outcome.USER_STOPPED:
                self._state.exit(live, Exit.USER_STOPPED, TrialState.COMPLETED)
            case Outcome.INVALID_HP:
                self._note(self._failures.declined, live, active.message)
                self._state.exit(live, Exit.INVALID_HP, TrialState.INVALID_HP, active.message)
            case Outcome.PREEMPTED if self._asked(live, active) or self._may_be_lost(live, active):
                self._preempted(live)
            case Outcome.BLOCKED:
                self._blocked(live, active.message)
            case Outcome.MISTAKE:
                self._state.then(lambda: setattr(self._failures, "mistake", True))
                self._failed_for_good(live, active.message, "")
            case _:
                self._failed(live, active, status)

    def give_up(self, trial: int, now: bool, preempt: Callable[[LiveTrial, str, float | None], object]) -> None:
        """End one trial for good, as somebody wants it, and `preempt` its run, or have it killed `now`.

        The search goes on without it. What the run says from then on is taken, and decides nothing; a driver that finds it
        running later ends it, too.
        """
        for live in [live for live in self._state.open.values() if live.id == trial]:
            with self._state.turn():
                self._state.exit(live, Exit.USER_STOPPED, TrialState.CANCELED, "it was canceled")
                if live.active is not None:
                    self._state.then(partial(preempt, live, "the trial is canceled", 0.0 if now else None))

    def _asked(self, live: LiveTrial, active: ActiveRun) -> bool:
        return active.preempting or active.adopted or live.plan.closed or self._state.wish is not None

    def _may_be_lost(self, live: LiveTrial, active: ActiveRun) -> bool:
        """Whether a run that was taken from its trial, with its machine or by a signal, counts for nothing; not for ever."""
        live.fruitless = 0 if self._saved(live, active) else live.fruitless + 1
        return live.fruitless <= MOST_FRUITLESS

    def _saved(self, live: LiveTrial, active: ActiveRun) -> bool:
        """Whether a run got any further."""
        latest = self._state.row(live).latest_checkpoint
        if latest is None:
            return False
        saved = self._state.store.checkpoints.get(latest)
        return saved.run_id == active.run.id and saved.batches > active.run.first_batch

    def _completed(self, live: LiveTrial) -> None:
        if not live.plan.closed and not live.plan.wanted:
            self._state.rest(live, TrialState.WAITING)
        elif not live.plan.closed and self._state.trial_class:
            self._state.rest(live, TrialState.QUEUED)  # its target was raised while the run was ending
        else:
            self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)

    def _preempted(self, live: LiveTrial) -> None:
        if live.plan.closed:
            self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)
        elif self._state.wish is ExperimentState.CANCELED:
            self._state.exit(live, Exit.CANCELED, TrialState.CANCELED)
        else:
            self._state.rest(live, TrialState.PAUSED if self._state.wish else TrialState.QUEUED)

    def _blocked(self, live: LiveTrial, message: str) -> None:
        def adopt() -> None:
            live.blocked = self._failures.mistake = self._failures.resumable = True

        self._state.then(adopt)
        self._note(self._failures.messages, live, message)
        self._state.rest(live, TrialState.PAUSED)
        self._state.store.trials.update(live.id, exit_reason=message)

    def _note(self, messages: list[str], live: LiveTrial, message: str) -> None:
        self._state.then(lambda: messages.append(f"trial {live.id}: {message}"))

    def _failed(self, live: LiveTrial, active: ActiveRun, status: int) -> None:
        if live.plan.closed or (self._state.wish is not None and active.outcome is None):
            self._preempted(live)  # killed because it was asked for
            return
        message, words = _cause(live.id, active, status)
        failure = (message, active.progressed_to)
        repeated = active.outcome is Outcome.ERROR and live.failure == failure
        self._state.then(lambda: setattr(live, "failure", failure))
        config = self._state.config
        if repeated or live.restarts >= config.max_restarts or _cancels_retries(config, active.run.log_dir):
            self._failed_for_good(live, message, words)
            return
        live.restarts += 1
        self._state.rest(live, TrialState.QUEUED)
        self._state.store.trials.update(live.id, restarts=live.restarts)

    def _failed_for_good(self, live: LiveTrial, message: str, trace: str) -> None:
        self._note(self._failures.messages, live, message)
        if trace:
            self._state.then(lambda: setattr(self._failures, "traceback", trace))
        self._state.exit(live, Exit.ERRORED, TrialState.ERROR, message)

    def final_state(self) -> ExperimentState:
        """Return what an experiment is whose trials have all ended: it has failed where none of them found anything."""
        trials = self._state.trials.values()
        if trials and all(live.state is TrialState.CANCELED for live in trials):
            return ExperimentState.CANCELED
        ended = [live.plan.exited for live in trials]
        good = any(exit in (Exit.COMPLETED, Exit.USER_STOPPED) for exit in ended)
        if not good:
            self._failures.messages = self._failures.messages or self._failures.declined
        elif unusable := _no_usable_metric(self._state):
            # A single trial is ranked among nobody, and has trained as it was asked to.
            good = isinstance(self._state.config.searcher, Single) and not unusable.reported
            (self._failures.notices if good else self._failures.messages).append(unusable.why)
        return ExperimentState.COMPLETED if good else ExperimentState.ERROR


def outcome_of(active: ActiveRun, status: int) -> str:
    """Say in a word, or in a sentence, how a run ended."""
    if active.unstarted:
        return f"not started: {active.unstarted}"
    return str(active.outcome.value) if active.outcome else active.message or exit_status(status)


def reason_of(live: LiveTrial, active: ActiveRun, status: int) -> str | None:
    """Say in a sentence why a run failed; None of one that did not, or never began."""
    return None if active.outcome in GOOD or active.unstarted else _cause(live.id, active, status)[0]


def _cause(trial: int, active: ActiveRun, status: int) -> tuple[str, str]:
    """Return why a run failed, in a sentence, and the traceback, or what else it wrote last."""
    if active.message or not status:
        return active.message or exit_status(status), active.traceback
    words = _last_words(active.run.log_dir)
    raised = words.startswith("Traceback")
    message = exit_status(status) + (f": {words.splitlines()[-1]}" if raised and status > 0 else "")
    return message, words if raised or not words else f"det: trial {trial} wrote last:\n{words}"


def exit_status(status: int) -> str:
    """Say how a process ended; a negative status is a signal's number."""
    if status == 0:
        return "the process ended before the trial was complete; return from its methods, and let det end it"
    return f"the process {how_it_ended(status)}"


def _last_words(log_dir: Path) -> str:
    """Return what a process wrote last, as it had no word for the driver."""
    try:
        with (log_dir / "rank-0.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return last_words(file.read())
    except OSError:
        return ""


def _cancels_retries(config: ExperimentConfig, log_dir: Path) -> bool:
    """Tell whether a `log_policies` entry with the action `cancel_retries` matches a line of the run's logs."""
    patterns = [re.compile(p.pattern) for p in config.log_policies if p.pattern and p.action == "cancel_retries"]
    for file in sorted(log_dir.glob("*.log")) if patterns else ():
        with file.open(errors="replace") as lines:
            if any(pattern.search(line) for line in lines for pattern in patterns):
                return True
    return False


class _Unusable(NamedTuple):
    """Why no trial can be ranked; `reported` tells whether the metric was reported at all."""

    why: str
    reported: bool


def _no_usable_metric(state: State) -> _Unusable | None:
    """Say what is wrong where validations were reported, and none of them holds a number by which trials are ranked.

    NaN counts as the worst value: its trial goes on, and completes. Returns nothing where all is well, and for scripts that
    reported no validation at all.
    """
    metric = state.config.searcher.metric if state.config.searcher else None
    if not metric or state.best is not None:
        return None
    report = next(state.store.metrics.read(experiment_id=state.id, group="validation"), None)
    if report is None:
        return None
    none = f"no trial has a usable {metric!r} (searcher.metric):"
    if metric in report.values:
        return _Unusable(f"{none} it was never a number; look at the losses, and train slower", True)
    names = sorted(set(report.values) - {"batches", "epochs"})
    way_out = did_you_mean(metric, names) or "; report it, or name one of those"
    return _Unusable(f"{none} validations reported {', '.join(names) or 'nothing'}{way_out}", False)

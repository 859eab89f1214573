"""What becomes of a trial when its run has ended, and of an experiment when its trials have."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from det_core.checkpoint.manifest import WAY_OUT
from det_core.config import ExperimentConfig, Grid, Single
from det_core.errors import did_you_mean
from det_core.support.paths import open_regular
from det_core.train.ending import EXIT
from det_core.train.host import Outcome
from det_node.launch import last_words
from det_node.process import exit_status, how_it_ended

from ..search import Exit
from ..store import ExperimentState, TrialState
from ._starting import RESTART_SECONDS
from ._state import State
from ._trials import FAILED, GOOD, ActiveRun, LiveTrial

MOST_SHOWN = 3
_TAIL = 1 << 16
MOST_FRUITLESS = 5
"""How many runs in a row may be lost or preempted from outside without progress.

The next one counts as a failure.
"""
MOST_ALIKE = 3
"""How many trials may fail alike before any trial made progress.

The experiment ends then, and after a resume whenever as many more have failed.
"""
MOST_INVALID = 20
"""How many trials in a row may have invalid hyperparameters.

The experiment ends then, and after a resume whenever as many more are invalid.
"""
MOST_PRUNED = 100
"""The same limit where some of them have reported a metric, as pruned trials have."""
_MOST_REPEATS = {True: 2, False: 3}
"""How often a run may fail alike at one batch: with an exception, and without one."""
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
_RAISED = EXIT[Outcome.PEER_LOST]
"""The exit status of a rank that raises because it has lost another rank."""
_NOT_STARTED = (126, 127)
"""The statuses of a shell for a command that it may not execute, or does not find."""
# B108: it is what a message says; nothing is opened there.
_VARIES = re.compile(  # nosec B108
    r"/tmp/\S+|0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
)
_PYTHON_ALONE = re.compile(r"\s*\S*python[\d.]*\s[^|;&\n]*\s*")
_FROM_OUTSIDE = (-signal.SIGKILL, 128 + signal.SIGKILL, *_TERMINATED)


@dataclass
class ExperimentFailures:
    """What went wrong in an experiment, for its final report.

    - `mistake`: the cause is in the configuration or code, not in the training.
    - `resumable`: the experiment can continue when the cause is fixed.
    - `declined`: the messages of trials that rejected their hyperparameters.
    - `notices`: notes on an experiment that completed nevertheless.
    """

    messages: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    traceback: str = ""
    mistake: bool = False
    resumable: bool = False

    @property
    def reason(self) -> str:
        """Why the experiment ended in its state, in one line, or "" where nothing went wrong."""
        shown = list(dict.fromkeys(self.messages or self.notices))
        more = f"; {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        return "; ".join(shown[:MOST_SHOWN]) + more


class Endings:
    """Decides, in a transaction of the state, the final state of runs, trials and the experiment.

    It notes what went wrong.
    """

    def __init__(
        self,
        state: State,
        failures: ExperimentFailures,
        restarts: tuple[float, ...] = RESTART_SECONDS,
    ) -> None:
        self._state, self._failures, self._restarts = state, failures, restarts

    def finish_run(self, live: LiveTrial, active: ActiveRun, status: int) -> str:
        """Decide the state of a trial by its run's outcome and its process's exit status.

        Returns why the whole experiment must end, or "".
        """
        if live.plan.exited is not None:
            # It was given up, and has ended already.
            return ""
        if active.unstarted:
            # It never ran, so this is no failure.
            self._state.set_waiting(live, TrialState.QUEUED)
            return ""
        self._compare(live, active, status)
        match active.outcome:
            case Outcome.COMPLETED:
                self._completed(live)
            case Outcome.USER_STOPPED:
                self._state.exit(live, Exit.USER_STOPPED, TrialState.COMPLETED)
            case Outcome.INVALID_HP:
                self._note(self._failures.declined, live, active.message)
                self._state.exit(live, Exit.INVALID_HP, TrialState.INVALID_HP, active.message)
                return self._all_invalid(active.message)
            case Outcome.PREEMPTED if self._was_asked_to_end(live, active) or self._may_be_lost(
                live, active
            ):
                self._preempted(live)
            case Outcome.UNREACHABLE if active.waits and self._state.target_state is None:
                self._state.set_waiting(live, TrialState.QUEUED)
            case Outcome.BLOCKED | Outcome.UNREACHABLE:
                self._blocked(live, active.message)
                return active.message
            case Outcome.DAMAGED:
                if why := self._fall_back(live, active.message):
                    return self._mistaken(live, why)
                self._state.set_waiting(live, TrialState.QUEUED)
            case Outcome.MISTAKE:
                return self._mistaken(live, active.message)
            case _:
                return self._failed(live, active, status)
        return ""

    def _compare(self, live: LiveTrial, active: ActiveRun, status: int) -> None:
        """Compare a run's reported outcome with the exit status of its process.

        The status decides where no outcome was reported.
        """
        if self._state.trial_class:
            if active.outcome is None and status in _TERMINATED:
                active.outcome = Outcome.PREEMPTED
            return
        hides = _may_hide_a_status(self._state.config.entrypoint)
        if status == 0 and not hides:
            # The script has caught what it gave to sys.exit.
            active.exit_status = 0
        status = _compare_statuses(active, status)
        if active.outcome is None and status in _TERMINATED:
            active.outcome = Outcome.PREEMPTED
        ended_by = active.refused or active.uncaught
        caught = active.outcome in (*FAILED, Outcome.PEER_LOST) and not ended_by
        if status == 0 and caught:
            # The script continued after the failure, and ended well.
            active.outcome, active.message, active.traceback = Outcome.COMPLETED, "", ""
        elif status == 0 and self._has_ended_on_request(live, active):
            active.outcome = Outcome.PREEMPTED
        elif status == 0 and active.outcome is None and not active.message:
            if active.preempting and not active.acked:
                # It never connected and got SIGTERM. Status 0 is the only sign that it has saved.
                active.outcome = Outcome.PREEMPTED
            elif not active.acked and hides and (words := _raised_at_the_end(active.run.log_dir)):
                active.outcome, active.message = Outcome.ERROR, words.splitlines()[-1]
                active.traceback = words
            elif active.acked and live.plan.runnable and live.plan.until is not None:
                active.message = (
                    f"its process ended with status 0 at batch {active.progressed_to}, before"
                    " searcher.max_length and without a message (os._exit(), or killed behind a"
                    " shell)"
                )
            else:
                active.outcome = Outcome.COMPLETED

    def _has_ended_on_request(self, live: LiveTrial, active: ActiveRun) -> bool:
        """Return whether a script that was asked to end, and handles SIGTERM itself, may go on.

        It has not trained to its length, or nothing says so.
        """
        return (
            active.outcome is Outcome.COMPLETED
            and active.own_handler
            and (active.preempted or active.preempting or self._state.target_state is not None)
            and live.plan.runnable
            and not (
                self._state.unit == "batches"
                and live.plan.until is not None
                and active.progressed_to >= live.plan.until
            )
        )

    def cancel_trial(
        self, trial: int, now: bool, preempt: Callable[[LiveTrial, str, float | None], object]
    ) -> None:
        """Cancel one trial, and `preempt` its run, or have it killed with `now`.

        The search continues without it. Later messages of the run are stored and decide nothing. A
        later driver that finds it running ends it too.
        """
        for live in [live for live in self._state.open.values() if live.id == trial]:
            with self._state.transaction():
                self._state.exit(live, Exit.USER_STOPPED, TrialState.CANCELED, "it was canceled")
                if live.active is not None:
                    self._state.after_commit(
                        partial(preempt, live, "the trial is canceled", 0.0 if now else None)
                    )

    def _was_asked_to_end(self, live: LiveTrial, active: ActiveRun) -> bool:
        return (
            active.preempting
            or active.adopted
            or live.plan.closed
            or self._state.target_state is not None
        )

    def _may_be_lost(self, live: LiveTrial, active: ActiveRun) -> bool:
        """Return whether a run that was lost or preempted from outside counts for nothing.

        It does until `MOST_FRUITLESS` of them in a row made no progress.
        """
        live.fruitless = 0 if self._saved(live, active) else live.fruitless + 1
        return live.fruitless <= MOST_FRUITLESS

    def _saved(self, live: LiveTrial, active: ActiveRun) -> bool:
        """Return whether a run has saved a checkpoint beyond the batch where it began."""
        latest = self._state.row(live).latest_checkpoint
        if latest is None:
            return False
        saved = self._state.store.checkpoints.get(latest)
        return saved.run_id == active.run.id and saved.batches > active.run.first_batch

    def _completed(self, live: LiveTrial) -> None:
        if not live.plan.closed and not live.plan.wanted:
            self._state.set_waiting(live, TrialState.WAITING)
        elif not live.plan.closed and self._state.trial_class:
            # Its target was raised while the run was ending.
            self._state.set_waiting(live, TrialState.QUEUED)
        else:
            self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)

    def _preempted(self, live: LiveTrial) -> None:
        if live.plan.closed:
            self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)
        elif self._state.target_state is ExperimentState.CANCELED:
            self._state.exit(live, Exit.CANCELED, TrialState.CANCELED)
        else:
            self._state.set_waiting(
                live, TrialState.PAUSED if self._state.target_state else TrialState.QUEUED
            )

    def _blocked(self, live: LiveTrial, message: str) -> None:
        def apply() -> None:
            live.blocked = self._failures.mistake = self._failures.resumable = True

        self._state.after_commit(apply)
        self._note(self._failures.messages, live, message)
        self._state.set_waiting(live, TrialState.PAUSED)
        self._state.store.trials.update(live.id, exit_reason=message)

    def _fall_back(self, live: LiveTrial, message: str) -> str:
        """Continue a trial from the newest checkpoint that may be sound if its latest is damaged.

        Returns why that is impossible and what to do, or "".
        """
        store, latest = self._state.store, self._state.row(live).latest_checkpoint
        if latest is None or latest not in message:
            # The checkpoint is another trial's, or one that a script chose.
            return message.replace(WAY_OUT, "restore its files, or name another one")
        older = store.checkpoints.mark_damaged(latest)
        if older is None:
            return message.replace(WAY_OUT, self._restored_by(live, latest))
        at = store.checkpoints.get(older).batches
        text = f"{message.partition(';')[0]}; it goes on from {older} (batch {at})"
        self._note(self._failures.notices, live, text)
        self._state.report_notice(live, text)
        return ""

    def _restored_by(self, live: LiveTrial, uuid: str) -> str:
        """Return how to recover a trial that has no sound checkpoint left."""
        if isinstance(self._state.config.searcher, Single):
            resume = f"det resume {self._state.id}"
            return (
                f"no older one is sound: restore its files and go on with {resume} --checkpoint"
                f" {uuid}, or train again: {resume}"
            )
        return (
            "no older one is sound, and the search goes on without this trial: restore its files"
            f" and start another experiment with searcher.source_checkpoint_uuid: {uuid}"
        )

    def _note(self, messages: list[str], live: LiveTrial, message: str) -> None:
        self._state.after_commit(lambda: messages.append(f"trial {live.id}: {message}"))

    def _failed(self, live: LiveTrial, active: ActiveRun, status: int) -> str:
        if (
            live.plan.closed
            or active.killed
            or (
                (self._state.target_state is not None or active.preempting)
                and active.outcome is None
            )
        ):
            self._killed(live, active)
            return ""
        message, words = _cause(live.id, active, status)
        key = _comparable(message)
        repeats, stumbles = self._note_failure(live, (key, active.progressed_to))
        raised = active.outcome in FAILED or words.startswith("Traceback")
        # A cause outside the process may be over. A process that dies by itself may have made
        # progress that it did not report.
        by_itself = raised or (
            active.outcome is None and status not in _FROM_OUTSIDE and not active.progressed_to
        )
        config = self._state.config
        hopeless = (by_itself and repeats >= _MOST_REPEATS[raised]) or (
            # What a shell cannot start is a mistake, unless a program returns the same status.
            status in _NOT_STARTED and not active.acked
        )
        if (
            hopeless
            or live.restarts >= config.max_restarts
            or _cancels_retries(config, active.run.log_dir)
        ):
            return self._failed_for_good(live, message, words)
        live.restarts += 1
        self._state.set_waiting(live, TrialState.QUEUED)
        self._state.store.trials.update(live.id, restarts=live.restarts)
        pause = self._restarts[min(stumbles, len(self._restarts)) - 1]
        self._state.after_commit(lambda: self._state.hold(live, pause))
        return ""

    def _note_failure(self, live: LiveTrial, failure: tuple[str, int]) -> tuple[int, int]:
        """Record how and where a run failed.

        Returns how often in a row this failure happened, and how many restarts in a row made no
        progress.
        """
        repeats = live.repeats + 1 if live.failure == failure else 1
        got_further = live.failure is not None and failure[1] > live.failure[1]
        stumbles = 1 if got_further else live.stumbles + 1

        def apply() -> None:
            live.failure, live.repeats, live.stumbles = failure, repeats, stumbles

        self._state.after_commit(apply)
        return repeats, stumbles

    def _killed(self, live: LiveTrial, active: ActiveRun) -> None:
        """Handle a run that was killed because it had to end."""
        if active.killed and active.patience and not live.plan.closed:
            latest = self._state.row(live).latest_checkpoint
            batch = self._state.store.checkpoints.get(latest).batches if latest else 0
            left = (
                f"what it trained after batch {batch} is lost" if batch else "it has no checkpoint"
            )
            self._note(self._failures.notices, live, f"det killed it, as {active.killed}; {left}")
        self._preempted(live)

    def _mistaken(self, live: LiveTrial, message: str) -> str:
        self._state.after_commit(lambda: setattr(self._failures, "mistake", True))
        return self._failed_for_good(live, message, "")

    def _failed_for_good(self, live: LiveTrial, message: str, trace: str) -> str:
        self._note(self._failures.messages, live, message)
        if trace:
            self._state.after_commit(lambda: setattr(self._failures, "traceback", trace))
        self._state.exit(live, Exit.ERRORED, TrialState.ERROR, message)
        failed = self._state.store.trials.first_failures(self._state.id)
        if not failed or len(failed) % MOST_ALIKE or len({*map(_comparable, failed)}) > 1:
            return ""
        return self._end(
            f"the first {len(failed)} trials failed alike before any had got anywhere: {message};"
            " mend that"
        )

    def _all_invalid(self, message: str) -> str:
        """Return why the search must end where it would replace invalid hyperparameters forever."""
        # A grid is finite.
        if isinstance(self._state.config.searcher, Grid):
            return ""
        invalid, measured = self._state.store.trials.invalid_in_a_row(self._state.id)
        if invalid % (MOST_PRUNED if measured else MOST_INVALID):
            return ""
        last = f", the last one saying: {message}" if message else ""
        return self._end(
            f"the hyperparameters of {invalid} trials in a row are invalid (InvalidHP){last};"
            " narrow their ranges"
        )

    def _end(self, why: str) -> str:
        """End the experiment, unless it ends anyway.

        Trials that have not begun may run after a resume.
        """
        if not self._state.open or self._state.target_state is not None:
            return ""

        def apply() -> None:
            self._failures.messages[:] = [why]
            self._failures.resumable = True

        self._state.after_commit(apply)
        return why

    def final_state(self) -> ExperimentState:
        """Return the state of an experiment whose trials have all ended.

        It is ERROR where no trial has a usable result.
        """
        trials = self._state.trials.values()
        if trials and all(live.state is TrialState.CANCELED for live in trials):
            return ExperimentState.CANCELED
        ended = [live.plan.exited for live in trials]
        good = any(exit in (Exit.COMPLETED, Exit.USER_STOPPED) for exit in ended)
        if not good:
            self._failures.messages = self._failures.messages or self._failures.declined
        elif unusable := _no_usable_metric(self._state):
            # A single trial needs no rank, and has trained as requested.
            good = isinstance(self._state.config.searcher, Single) and not unusable.reported
            (self._failures.notices if good else self._failures.messages).append(unusable.why)
            # A metric that no trial reports is a mistake for scripts and for trial classes alike.
            self._failures.mistake = self._failures.mistake or not unusable.reported
        elif lacking := self._lacking():
            self._failures.notices.append(lacking)
        if good and (failed := [live.id for live in trials if live.state is TrialState.ERROR]):
            self._failures.notices.append(
                f"trial{_named(failed)} failed, and the search went on without"
                f" {'it' if len(failed) == 1 else 'them'}"
            )
        return ExperimentState.COMPLETED if good else ExperimentState.ERROR

    def _lacking(self) -> str:
        """Return which completed trials cannot be ranked because they reported no number, or ""."""
        metric = self._state.config.searcher.metric if self._state.config.searcher else None
        trials = (
            self._state.store.trials.unmeasured(self._state.id, MOST_SHOWN + 1) if metric else ()
        )
        if not trials:
            return ""
        return f"no number was reported for {metric!r} (searcher.metric) by trial{_named(trials)}"


def _named(trials: Sequence[int]) -> str:
    """Return the first few trial numbers as text that follows the word "trial"."""
    more = ", ..." if len(trials) > MOST_SHOWN else ""
    return f"{'s' * (len(trials) > 1)} {', '.join(map(str, trials[:MOST_SHOWN]))}{more}"


def _compare_statuses(active: ActiveRun, status: int) -> int:
    """Compare the exit status of a script's process with what its ranks reported.

    A shell around the script, or a launcher of its ranks, may end with another status. Returns the
    status of the script.
    """
    called = active.exit_status
    if active.outcome is Outcome.PEER_LOST and status not in (0, _RAISED, *_TERMINATED):
        # A launcher ends with the status of the rank that failed first. That rank reported
        # nothing, and the others report only that they have lost it.
        active.outcome, active.message = None, f"a rank {how_it_ended(status)}"
    elif active.outcome is not Outcome.COMPLETED:
        return status
    elif called and called != status and status not in _TERMINATED:
        who = f"rank {active.speaker}" if active.several else "the process"
        active.outcome, active.message = None, f"{who} {how_it_ended(called)}"
        return called
    elif status:
        active.outcome = None
    return status


def outcome_of(active: ActiveRun, status: int) -> str:
    """Return how a run ended, as one word or a sentence."""
    if active.unstarted:
        return f"not started: {active.unstarted}"
    if active.killed and active.outcome is None:
        return f"killed by det: {active.killed}"
    return str(active.outcome.value) if active.outcome else active.message or exit_status(status)


def reason_of(live: LiveTrial, active: ActiveRun, status: int) -> str | None:
    """Return why a run failed, in a sentence, or None if it did not fail or never began."""
    return (
        None if active.outcome in GOOD or active.unstarted else _cause(live.id, active, status)[0]
    )


def _cause(trial: int, active: ActiveRun, status: int) -> tuple[str, str]:
    """Return why a run failed, in a sentence, and its traceback or last output."""
    if active.message or not status:
        return active.message or exit_status(status), active.traceback
    words = _last_words(active.run.log_dir)
    raised = words.startswith("Traceback")
    message = exit_status(status) + (f": {words.splitlines()[-1]}" if raised and status > 0 else "")
    return message, words if raised or not words else f"det: trial {trial} wrote last:\n{words}"


def _last_words(log_dir: Path) -> str:
    """Return the last output of a process that reported no outcome."""
    try:
        with open_regular(log_dir / "rank-0.log") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            return last_words(file.read())
    except OSError:
        return ""


def _comparable(message: str) -> str:
    """Return a message without numbers and temporary paths, which differ between equal failures.

    How much memory was missing is kept, as it depends on hyperparameters.
    """
    return message if "memory" in message.lower() else _VARIES.sub("#", message)


def _may_hide_a_status(entrypoint: object) -> bool:
    """Return whether a shell may end with another status than the script that it runs.

    That is any command but one of Python alone, as a shell script may go on after a failure.
    """
    return isinstance(entrypoint, str) and not _PYTHON_ALONE.fullmatch(entrypoint)


def _raised_at_the_end(log_dir: Path) -> str:
    """Return the traceback that a process's output ends with, or "".

    More lines may be those of a program that caught the exception and went on.
    """
    words = _last_words(log_dir)
    last = words[words.rfind("Traceback (") :].splitlines()
    raised = list(dropwhile(lambda line: line.startswith(" "), last[1:]))
    return words if words.startswith("Traceback (") and len(raised) == 1 else ""


def _cancels_retries(config: ExperimentConfig, log_dir: Path) -> bool:
    """Return whether a line of the run's logs matches a `cancel_retries` entry of the policies."""
    patterns = [
        re.compile(p.pattern)
        for p in config.log_policies
        if p.pattern and p.action == "cancel_retries"
    ]
    for file in sorted(log_dir.glob("*.log")) if patterns else ():
        with open_regular(file) as log:
            lines = (line.decode(errors="replace") for line in log)
            if any(pattern.search(line) for line in lines for pattern in patterns):
                return True
    return False


class _Unusable(NamedTuple):
    """Why no trial can be ranked. `reported` says whether the metric was reported at all."""

    why: str
    reported: bool


def _no_usable_metric(state: State) -> _Unusable | None:
    """Return what is wrong where no reported validation has a number that ranks trials, else None.

    NaN counts as the worst value: its trial continues and completes.
    """
    metric = state.config.searcher.metric if state.config.searcher else None
    if not metric or state.best is not None:
        return None
    report = next(state.store.metrics.read(experiment_id=state.id, group="validation"), None)
    none = f"no trial has a usable {metric!r} (searcher.metric):"
    if report is None:
        return _Unusable(
            f"{none} no validation was reported; report it with report_validation_metrics()", False
        )
    if metric in report.values:
        value = report.values[metric]
        way_out = (
            f"but text, such as {value!r}; report a number"
            if isinstance(value, str)
            else "NaN each time; lower the learning rate, or clip gradients"
        )
        return _Unusable(f"{none} it was never a number, {way_out}", True)
    names = sorted(set(report.values) - {"batches", "epochs"})
    way_out = did_you_mean(metric, names) or "; report it, or name one of those"
    return _Unusable(f"{none} validations reported {', '.join(names) or 'nothing'}{way_out}", False)

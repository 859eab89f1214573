"""The driver: one thread that handles all events in order and journals them.

Connections, processes, signals and commands only put events into its inbox. Only its thread writes
the store. Each event is decided and committed in a transaction of the state. Its effects (replies,
starts, ends, notifications) follow the commit. A driver that is killed at any moment is therefore
replaced by one that replays the journal.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from det_core.errors import DetError, StoreUnwritable
from det_core.hooks import Plugins
from det_core.train.failure import summary
from det_node.launch import say

from ..engines import Ended, Engine, EngineFailed, NodeJoined, NodeLost, WorkerMessage
from ..search import Exit
from ..store import (
    COMMAND,
    DESCRIBE_COMMAND,
    CommandRow,
    ExperimentState,
    LogClock,
    Store,
    TrialState,
    Wakeups,
    boot_id,
)
from ._alerts import ExperimentAlerts
from ._connections import handle_message, report_failed_message
from ._earlier import begin_search
from ._endings import Endings, ExperimentFailures, outcome_of, reason_of
from ._fleet import Fleet, StopRequest
from ._garbage import collect_garbage, collect_left, expect_garbage
from ._lifecycle import CANCEL_TRIAL, STEER, engine_context, engine_named
from ._preload import find_preload_modules
from ._recover import detach, end_leftovers, note_pause, record_spooled
from ._search import SearchFilled, SearchSteered, SearchStopped, read_steering
from ._starting import DriverSettings, Starter, record_threads
from ._state import State
from ._transactions import rarely_collected
from ._trials import ActiveRun, LiveTrial

_POLL_SECONDS = 0.25
_WAITING_SECONDS = 2.0
_PROGRESS_SECONDS = 1.0
_AT_ONCE = 1000


@dataclass(frozen=True)
class Woken:
    """Slots may be free for the experiment, or there is a command."""

    what: bytes


Event = WorkerMessage | Ended | NodeJoined | NodeLost | EngineFailed | StopRequest | Woken


class Driver:
    """Drives one experiment until it ends or is paused.

    `run` does all of it in the thread that calls it. `pause` and `kill` may be called from any
    thread and from signal handlers.

    ExperimentBusy: another driver holds the experiment.
    """

    def __init__(self, settings: DriverSettings, experiment_id: int, plugins: Plugins) -> None:
        self.failures = ExperimentFailures()
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.engine: Engine = engine_named(settings.home, settings.engine, plugins)(self._inbox.put)
        self._settings = settings
        self._id = experiment_id
        self._plugins = plugins
        # The number of changes when the index was updated last.
        self._next_progress, self._published = 0.0, -1
        self._next_poll = 0.0
        self._most_running = 0
        self._started: float | None = None
        self._log_clock = LogClock()

    # From any thread

    def pause(self) -> None:
        """Save a checkpoint of every trial and end."""
        self._inbox.put(StopRequest("pause", "the experiment is paused"))

    def kill(self) -> None:
        """Kill every run. Training since the last checkpoint is lost."""
        self._inbox.put(StopRequest("kill", "the experiment is killed"))

    def kill_runs(self) -> None:
        """Kill every run, whatever the driver's thread is doing.

        Their agents stay connected until they are not needed.
        """
        self._runs.kill_all()

    # The driver's thread

    def run(self) -> ExperimentState:
        """Drive the experiment. Return the state in which it ends."""
        with rarely_collected(), Store(self._settings.home) as self._store:
            # Commands to an earlier driver are void, except those that change what it keeps.
            earlier = self._store.commands.names(self._id)
            with self._store.lock(self._id):
                self._store.commands.forget(self._id, earlier, but=(STEER, DESCRIBE_COMMAND))
                self._alerts = ExperimentAlerts(self._store, self._id)
                try:
                    return self._run()
                except BaseException as error:
                    # The first error is the one to report.
                    with suppress(DetError), self._store.transaction():
                        if detach(self._store, self._id, summary(error)):
                            self._alerts.report_end(ExperimentState.ERROR, summary(error))
                    raise
                finally:
                    with suppress(DetError):
                        self._alerts.flush()

    def _run(self) -> ExperimentState:
        wakeups = Wakeups(self._settings.home, self._id, lambda what: self._inbox.put(Woken(what)))
        with closing(self.engine), closing(wakeups) as self._wakeups:
            try:
                self._begin()
            except StoreUnwritable as error:
                return self._paused(error)
            with closing(self._runs):
                try:
                    self._drive()
                    return self._finish()
                except StoreUnwritable as error:
                    # A worker without a driver saves and ends, and notes its checkpoint for the
                    # next one.
                    self._runs.end_runs(self._inbox)
                    return self._paused(error)
                except Exception:
                    # The error is not in the runs: each saves, for the next driver.
                    self._runs.end_runs(self._inbox)
                    raise

    def _begin(self) -> None:
        self._store.experiments.hide_secrets(self._id)
        config = self._store.experiments.config(self._id)
        record_threads(self._store.experiment_dir(self._id), self._settings, config)
        executing = self.engine.open(
            engine_context(self._store, self._id, self._plugins, self._settings)
        )
        ids = {spec.run_id for spec in executing}
        end_leftovers(self._store, self._id, config.patience, lambda: self._inbox.qsize() > 1, ids)
        record_spooled(self._store, self._id)
        collect_left(self._store, self._plugins)
        self._state = State(self._store, self._id, self._plugins)
        self._state.together = self.engine.together
        self._runs = Fleet(self.engine, self._state, self._settings, self._inbox.put)
        self._endings = Endings(self._state, self.failures, self._settings.restarts)
        self._runs.resume_runs(executing)
        self._runs.prepare()
        with self._state.transaction():
            self._state.requeue_trials()
            begin_search(self._state)
            started = self._store.experiments.get(self._id).started or time.time()
            self._started = started
            self._store.experiments.update(
                self._id,
                state=ExperimentState.ACTIVE,
                started=started,
                ended=None,
                reason=None,
                pid=os.getpid(),
                boot=boot_id(),
                det=version("det-driver"),
            )
            self._state.observe("det_experiment_started")
        for text in self._state.search.learnt:
            say(f"experiment {self._id} {text}")

    def _drive(self) -> None:
        state, settings = self._state, self._settings
        preload = find_preload_modules(state.config, settings.gpus, self._store.code_dir(self._id))
        starter = Starter(state=state, settings=settings, preload=preload)
        while True:
            if self._state.closed:
                with self._state.group():
                    self._follow_closes()
            held = self._state.release_held()
            self._runs.start_due(starter)
            left = held or self._state.queue.first is not None
            if not self._runs.running and (self._state.target_state is not None or not left):
                return
            # Hundreds of experiments may wait until they are woken.
            woken = self._runs.only_waits and self._wakeups.work and not held
            pause = _WAITING_SECONDS if woken else _POLL_SECONDS
            self._take_events(pause)
            if time.monotonic() >= self._next_poll:
                self._next_poll = time.monotonic() + pause
                self._poll()

    def _take_events(self, seconds: float) -> None:
        """Wait for an event, and handle it with all others that have come.

        Messages and ends in a row are committed together.
        """
        events: deque[Event] = deque()
        with suppress(queue.Empty):
            events.append(self._inbox.get(timeout=seconds))
        while len(events) < _AT_ONCE and not self._inbox.empty():
            events.append(self._inbox.get_nowait())
        try:
            while events:
                if _joins(events[0]):
                    with self._state.group():
                        while events and _joins(events[0]):
                            self._handle(events.popleft())
                        self._follow_closes()
                else:
                    self._handle(events.popleft())
        finally:
            # On an error the driver still waits for the ends of runs.
            for event in events:
                self._inbox.put(event)

    def _handle(self, event: Event) -> None:
        """Handle an event. Messages of a run that has ended are dropped."""
        match event:
            case WorkerMessage():
                live = self._runs.running.get(event.run)
                if live is not None and live.active is not None:
                    self._handle_message(live, live.active, event)
            case Ended():
                if event.run in self._runs.running:
                    self._run_ended(event)
                else:
                    self.engine.acknowledge_end(event.run)
            case StopRequest():
                self._handle_stop_request(event)
            case Woken(what):
                self._runs.look_again()
                if what == COMMAND:
                    self._next_poll = 0.0
            case NodeJoined():
                self._runs.joined(event)
            case NodeLost(node):
                self._runs.mark_lost(node)
            case EngineFailed(thread, error):
                if isinstance(error, DetError):
                    raise error
                raise DetError(
                    f"the driver's thread {thread} has failed: {summary(error)}; its traceback is"
                    " above"
                ) from error

    def _handle_message(self, live: LiveTrial, active: ActiveRun, event: WorkerMessage) -> None:
        try:
            handle_message(self._state, self.engine, self._alerts, live, active, event)
        except StoreUnwritable:
            raise
        except Exception as error:
            # An error in handling a message is a failure of its run alone.
            self._state.after_commit(partial(self._fail_run, live, active, event, error))

    def _fail_run(
        self, live: LiveTrial, active: ActiveRun, event: WorkerMessage, error: Exception
    ) -> None:
        if not report_failed_message(self.engine, active, event, error) and live.active is active:
            self._runs.preempt(live, "its message could not be handled")

    def _poll(self) -> None:
        """Do the periodic work. It may look at every trial."""
        commands: list[CommandRow] = []
        if self._store.commands.names(self._id):
            # A change of the search is applied once, even if the driver is killed here.
            with self._state.group():
                commands = self._store.commands.take(self._id)
                for command in commands:
                    if command.kind == STEER:
                        self._steer(read_steering(command.args))
        for command in commands:
            if command.kind == DESCRIBE_COMMAND:
                self._store.experiments.update(self._id, **command.args)
            elif command.kind == CANCEL_TRIAL:
                self._endings.cancel_trial(**command.args, preempt=self._runs.preempt)
            elif command.kind != STEER:
                self._handle_stop_request(
                    StopRequest(command.kind, f"det {command.kind}", for_good=True)
                )
        self._runs.poll()
        for live in self._alerts.find_stuck(self._runs.running.values()):
            with self._state.transaction():
                self._alerts.report_stuck(live)
        if (free := self._alerts.find_full_disk()) is not None:
            with self._state.transaction():
                self._alerts.report_full_disk(free)
        self._alerts.poll()
        self._stop_in_time()
        self._use_idle_slots()
        if time.monotonic() >= self._next_progress:
            began = time.monotonic()
            # Hundreds of experiments that wait must not write all the time.
            if self._store.experiments.count_changes(self._id) != self._published:
                self._store.experiments.update(self._id, progress=self._state.progress)
                self._published = self._store.experiments.count_changes(self._id)
            else:
                self._store.slots.keep()
            self._runs.find_user()
            active = [live.active for live in self._runs.running.values()]
            self._log_clock.note(each.run.log_dir for each in active if each is not None)
            # A large search must not spend its time on this.
            now = time.monotonic()
            self._next_progress = now + max(_PROGRESS_SECONDS, 50 * (now - began))

    def _steer(self, event: SearchSteered) -> None:
        """Change the search as `det search` asks. A change that it refuses has no effect."""
        try:
            if self._state.target_state is ExperimentState.CANCELED:
                raise DetError("it is being canceled; start another with det run")
            with self._state.transaction():
                self._state.append_event(event)
                self._state.after_commit(self._runs.follow_steering)
        except StoreUnwritable:
            raise
        except DetError as error:
            say(f"experiment {self._id} refuses a change by det search: {error}")

    def _stop_in_time(self) -> None:
        """End the search when its `max_hours` are over."""
        hours = getattr(self._state.config.searcher, "max_hours", None)
        if hours is None or self._state.search.searcher.stopped:
            return
        if time.time() - (self._started or time.time()) >= 3600 * hours:
            with self._state.transaction():
                self._state.append_event(SearchStopped())

    def _use_idle_slots(self) -> None:
        """Create further trials for slots that this driver has used and that no trial waits for."""
        running = len(self._runs.running)
        self._most_running = max(self._most_running, running)
        state, idle = self._state, self._runs.room(self._most_running - running)
        left = state.queue.first is not None or state.holds
        if state.target_state is None and idle > 0 and not left and state.search.searcher.may_fill:
            with state.transaction():
                state.append_event(SearchFilled(idle))

    def _finish(self) -> ExperimentState:
        state = self._state.target_state or self._endings.final_state()
        collects = state is not ExperimentState.PAUSED and not self.failures.resumable
        if collects:
            expect_garbage(self._store, self._id)
        with self._state.transaction():
            self._store.experiments.update(
                self._id,
                state=state,
                ended=time.time(),
                progress=self._state.progress,
                reason=self.failures.reason or None,
                pid=None,
                boot=None,
            )
            self._alerts.report_end(state, self.failures.reason)
            for live in self._state.open.values():
                self._state.set_waiting(
                    live,
                    TrialState.CANCELED if state is ExperimentState.CANCELED else TrialState.PAUSED,
                )
            self._state.save_snapshot()
            if collects:
                self._state.after_commit(
                    lambda: collect_garbage(self._store, self._id, self._plugins)
                )
            self._state.observe("det_experiment_finished", state=str(state))
        return state

    # Runs

    def _run_ended(self, event: Ended) -> None:
        if event.status == -signal.SIGKILL:
            # It may have saved by itself.
            record_spooled(self._store, self._id)
        live, active = self._runs.release_run(event)
        self._log_clock.forget(active.run.log_dir)
        with self._state.transaction():
            given_up = live.plan.exited is not None
            halts = self._endings.finish_run(live, active, event.status)
            outcome = outcome_of(active, event.status)
            ended_by_us = active.outcome is None and (
                given_up or live.plan.closed or self._state.target_state is not None
            )
            self._store.runs.end(
                event.run, outcome, None if ended_by_us else reason_of(live, active, event.status)
            )
            if halts:
                self._state.after_commit(
                    lambda: self._handle_stop_request(StopRequest("block", halts))
                )
            if live.plan.closed:
                self._state.closed.append(live)
            self._state.after_commit(lambda: self._state.queue.add(live))
            self._state.after_commit(lambda: self.engine.acknowledge_end(event.run))
            self._state.observe("det_run_finished", of=live.id, ended=event.run, outcome=outcome)

    def _follow_closes(self) -> None:
        """Preempt the runs of trials that the searcher closed, and complete those that have no run.

        Call it inside `group`.
        """
        while self._state.closed:
            live = self._state.closed.popleft()
            if live.active is not None and not live.active.preempting:
                # A script may have more to do, so it gets the request even if it knows.
                notified = live.active.stopping and self._state.trial_class
                self._state.after_commit(
                    partial(
                        self._runs.preempt, live, "the searcher closed the trial", notified=notified
                    )
                )
            elif live.active is None and live.plan.exited is None:
                with self._state.transaction():
                    self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)

    # The end

    def _handle_stop_request(self, event: StopRequest) -> None:
        state = self._state
        if event.kind == "kill":
            state.target_state = (
                ExperimentState.CANCELED
                if event.for_good
                else state.target_state or ExperimentState.PAUSED
            )
            self._runs.kill_all()
            return
        target_states = {
            "pause": ExperimentState.PAUSED,
            "cancel": ExperimentState.CANCELED,
            "block": ExperimentState.ERROR,
        }
        # A pause must not revoke a target state that is an end.
        ends = state.target_state is not None and state.target_state.ended
        if not (ends and event.kind == "pause") and state.target_state is not ExperimentState.ERROR:
            state.target_state = target_states[event.kind]
        self._runs.preempt_all(event.why)

    def _paused(self, error: StoreUnwritable) -> ExperimentState:
        """Leave the experiment resumable because its store cannot be written."""
        self.failures.resumable = True
        self.failures.messages.append(str(error))
        note_pause(self._store, self._id, str(error))
        return ExperimentState.PAUSED


def _joins(event: Event) -> bool:
    """Return whether an event may be committed together with others.

    A run that was killed may have left a note, which is recorded in its own transaction.
    """
    return isinstance(event, WorkerMessage) or (
        isinstance(event, Ended) and event.status != -signal.SIGKILL
    )

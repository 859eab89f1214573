"""The driver: one thread that hears of everything in order, journals it, and acts on it.

Connections, processes, signals and commands only put events into its inbox; the store is written in its thread alone. Every
event goes one way: it is decided and committed in a turn of the state, and what follows from it (answers, starts, ends,
observers) is done after that, so that a driver killed at any instant is replaced by one that replays the journal.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections import deque
from contextlib import closing, suppress
from functools import partial
from importlib.metadata import version

from det_core.config import from_json
from det_core.errors import DetError, StoreUnwritable
from det_core.failure import summary
from det_core.host import Outcome
from det_core.plugins import Plugins

from ..engines import Ended, Engine, Joined, Lost, Spoke
from ..search import Exit
from ..store import ExperimentState, Store, TrialState, boot_id
from ._connections import broke, heard
from ._endings import Endings, ExperimentFailures, outcome_of, reason_of
from ._fleet import Asked, Fleet
from ._garbage import collect_garbage, collect_left, expect_garbage
from ._lifecycle import DESCRIBE, GIVE_UP, site_of
from ._recover import abandon, adopt_spooled, end_leftovers, note_pause
from ._search import SearchStarted
from ._starting import DriverSettings, Starter
from ._state import State
from ._trials import ActiveRun, LiveTrial
from ._turns import rarely_collected
from ._warm import warm_modules

_POLL_SECONDS = 0.25
_PROGRESS_SECONDS = 1.0
_AT_ONCE = 1000
Event = Spoke | Ended | Joined | Lost | Asked


class Driver:
    """Drives one experiment until it ends or is paused.

    `run` does it all, in the thread that calls it; `pause` and `kill` may be called from any thread and from
    signal handlers. Raises ExperimentBusy when another driver holds the experiment.
    """

    def __init__(self, settings: DriverSettings, experiment_id: int, plugins: Plugins) -> None:
        self.failures = ExperimentFailures()
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.engine: Engine = plugins.engines()[settings.engine].load()(self._inbox.put)
        self._settings = settings
        self._id = experiment_id
        self._plugins = plugins
        self._next_progress = 0.0

    # From any thread

    def pause(self) -> None:
        """Checkpoint every trial and end."""
        self._inbox.put(Asked("pause", "the experiment is paused"))

    def kill(self) -> None:
        """End every run at once; what is not checkpointed is lost."""
        self._inbox.put(Asked("kill", "the experiment is killed"))

    # The driver's thread

    def run(self) -> ExperimentState:
        """Drive the experiment; return the state that it ends in."""
        with rarely_collected(), Store(self._settings.home) as self._store:
            earlier = self._store.commands.names(self._id)  # what was asked of an earlier driver is no longer meant
            with self._store.lock(self._id):
                self._store.commands.forget(self._id, earlier)
                try:
                    return self._run()
                except BaseException as error:
                    with suppress(DetError):  # the first error is the one to tell
                        abandon(self._store, self._id, summary(error))
                    raise

    def _run(self) -> ExperimentState:
        with closing(self.engine):
            try:
                self._begin()
            except StoreUnwritable as error:
                return self._paused(error)
            with closing(self._runs):
                try:
                    self._drive()
                    return self._end()
                except StoreUnwritable as error:
                    # A worker without a driver saves and ends, and notes its checkpoint for the next one.
                    self._runs.let_go(self._inbox)
                    return self._paused(error)
                except Exception:  # whatever is wrong here, it is not the runs: each saves, for the next driver
                    self._runs.let_go(self._inbox)
                    raise

    def _begin(self) -> None:
        config = from_json(self._store.experiments.get(self._id).config)
        executing = self.engine.open(site_of(self._store, self._id, self._plugins, self._settings))
        ids = {spec.run_id for spec in executing}
        end_leftovers(self._store, self._id, config.patience, lambda: self._inbox.qsize() > 1, ids)
        adopt_spooled(self._store, self._id)
        collect_left(self._store, self._plugins)
        self._state = State(self._store, self._id, self._plugins)
        self._state.together = self.engine.together
        self._runs = Fleet(self.engine, self._state, self._settings, self._inbox.put)
        self._endings = Endings(self._state, self.failures)
        self._runs.adopt(executing)
        self._runs.prepare()
        with self._state.turn():
            self._state.take_over()
            if not self._state.search.plans:
                self._state.happened(SearchStarted())
            started = self._store.experiments.get(self._id).started or time.time()
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

    def _drive(self) -> None:
        state, settings = self._state, self._settings
        warm = warm_modules(state.config, settings.gpus, self._store.code_dir(self._id))
        starter = Starter(state=state, settings=settings, warm=warm)
        next_poll = 0.0
        while True:
            if self._state.closed:
                with self._state.group():
                    self._follow_closes()
            self._runs.start_what_is_due(starter)
            if not self._runs.running and (self._state.wish is not None or self._state.queue.first is None):
                return
            self._take_what_came()
            if time.monotonic() >= next_poll:
                next_poll = time.monotonic() + _POLL_SECONDS
                self._poll()

    def _take_what_came(self) -> None:
        """Wait for something, and take it with what came with it; words and ends in a row are committed together."""
        came: deque[Event] = deque()
        with suppress(queue.Empty):
            came.append(self._inbox.get(timeout=_POLL_SECONDS))
            while len(came) < _AT_ONCE:
                came.append(self._inbox.get_nowait())
        try:
            while came:
                if _joins(came[0]):
                    with self._state.group():
                        while came and _joins(came[0]):
                            self._take(came.popleft())
                        self._follow_closes()
                else:
                    self._take(came.popleft())
        finally:
            for event in came:  # who gives up waits for the ends of runs
                self._inbox.put(event)

    def _take(self, event: Event) -> None:
        """Take what was heard; one of a run that has ended is of no more interest."""
        match event:
            case Spoke():
                live = self._runs.running.get(event.run)
                if live is not None and live.active is not None:
                    self._spoken(live, live.active, event)
            case Ended():
                if event.run in self._runs.running:
                    self._run_ended(event)
                else:
                    self.engine.settled(event.run)
            case Asked():
                self._asked(event)
            case Joined():
                self._runs.joined(event)
            case Lost(node):
                self._runs.lose(node)

    def _spoken(self, live: LiveTrial, active: ActiveRun, event: Spoke) -> None:
        try:
            heard(self._state, self.engine, live, active, event)
        except StoreUnwritable:
            raise
        except Exception as error:  # what a word breaks is its run's failure, and nobody else's
            self._state.then(partial(self._broken, live, active, event, error))

    def _broken(self, live: LiveTrial, active: ActiveRun, event: Spoke, error: Exception) -> None:
        if not broke(self.engine, active, event, error) and live.active is active:
            self._runs.preempt(live, "what it said could not be taken")

    def _poll(self) -> None:
        """Do what is done now and then, whatever happens: it may look at every trial."""
        for command in self._store.commands.take(self._id):
            if command.kind == DESCRIBE:
                self._store.experiments.update(self._id, **command.args)
            elif command.kind == GIVE_UP:
                self._endings.give_up(**command.args, preempt=self._runs.preempt)
            else:
                self._asked(Asked(command.kind, f"det {command.kind}", for_good=True))
        self._runs.poll()
        if time.monotonic() >= self._next_progress:
            began = time.monotonic()
            self._store.experiments.update(self._id, progress=self._state.progress)
            now = time.monotonic()  # a large search is not to spend its time on this
            self._next_progress = now + max(_PROGRESS_SECONDS, 50 * (now - began))

    def _end(self) -> ExperimentState:
        state = self._state.wish or self._endings.final_state()
        collects = state is not ExperimentState.PAUSED and not self.failures.resumable
        if collects:
            expect_garbage(self._store, self._id)
        with self._state.turn():
            self._store.experiments.update(
                self._id,
                state=state,
                ended=time.time(),
                progress=self._state.progress,
                reason=self.failures.reason or None,
                pid=None,
                boot=None,
            )
            for live in self._state.open.values():
                self._state.rest(live, TrialState.CANCELED if state is ExperimentState.CANCELED else TrialState.PAUSED)
            self._state.keep()
            if collects:
                self._state.then(lambda: collect_garbage(self._store, self._id, self._plugins))
            self._state.observe("det_experiment_finished", state=str(state))
        return state

    # Runs

    def _run_ended(self, event: Ended) -> None:
        if event.status == -signal.SIGKILL:
            adopt_spooled(self._store, self._id)  # it may have saved by itself
        live, active = self._runs.take_back(event)
        with self._state.turn():
            given_up = live.plan.exited is not None
            self._endings.settle(live, active, event.status)
            outcome = outcome_of(active, event.status)
            ended_by_us = active.outcome is None and (given_up or live.plan.closed or self._state.wish is not None)
            self._store.runs.end(event.run, outcome, None if ended_by_us else reason_of(live, active, event.status))
            if active.outcome is Outcome.BLOCKED:
                self._state.then(lambda: self._asked(Asked("block", active.message)))
            if live.plan.closed:
                self._state.closed.append(live)
            self._state.then(lambda: self._state.queue.add(live))
            self._state.then(lambda: self.engine.settled(event.run))
            self._state.observe("det_run_finished", of=live.id, ended=event.run, outcome=outcome)

    def _follow_closes(self) -> None:
        """End the runs of trials that the searcher closed; those that have none are complete; in a group."""
        while self._state.closed:
            live = self._state.closed.popleft()
            if live.active is not None and not live.active.preempting:
                told = live.active.stopping and self._state.trial_class  # a script may have more to do
                self._state.then(partial(self._runs.preempt, live, "the searcher closed the trial", told=told))
            elif live.active is None and live.plan.exited is None:
                with self._state.turn():
                    self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)

    # The end

    def _asked(self, event: Asked) -> None:
        state = self._state
        if event.kind == "kill":
            state.wish = ExperimentState.CANCELED if event.for_good else state.wish or ExperimentState.PAUSED
            self._runs.kill_all()
            return
        wishes = {"pause": ExperimentState.PAUSED, "cancel": ExperimentState.CANCELED, "block": ExperimentState.ERROR}
        ends = state.wish is not None and state.wish.ended  # pausing is not to take that back
        if not (ends and event.kind == "pause") and state.wish is not ExperimentState.ERROR:
            state.wish = wishes[event.kind]
        self._runs.preempt_all(event.why)

    def _paused(self, error: StoreUnwritable) -> ExperimentState:
        """Leave the experiment resumable, as its store cannot be written."""
        self.failures.resumable = True
        self.failures.messages.append(str(error))
        note_pause(self._store, self._id, str(error))
        return ExperimentState.PAUSED


def _joins(event: Event) -> bool:
    """Tell whether it may be committed with others; a run that was killed may have left a note, which is taken up alone."""
    return isinstance(event, Spoke) or (isinstance(event, Ended) and event.status != -signal.SIGKILL)

"""The driver: one thread that hears of everything in order, journals it, and acts on it.

Connections, processes, signals and commands only put events into its inbox; the store is written in its thread alone. Every
event goes one way: it is decided and committed in a turn of the state, and what follows from it (answers, starts, ends,
observers) is done after that, so that a driver killed at any instant is replaced by one that replays the journal.
"""

from __future__ import annotations

import os
import queue
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from det_core import wire
from det_core.config import from_json
from det_core.errors import DetError, StoreUnwritable
from det_core.failure import summary
from det_core.host import Outcome
from det_core.launch import hosts_of
from det_core.plugins import Plugins
from det_core.protocol import Finished

from ..engines import Engine
from ..search import Exit
from ..store import ExperimentState, Store, TrialState, boot_id
from ._connections import Came, Heard, Refused, broke, came, heard, serve
from ._endings import Endings, ExperimentFailures, outcome_of
from ._fleet import Asked, Fleet, RunEnded
from ._garbage import collect_garbage, collect_left, expect_garbage
from ._recover import abandon, adopt_spooled, end_leftovers, note_pause
from ._search import SearchStarted
from ._starting import DriverSettings, Starter, driver_address
from ._state import State
from ._trials import ActiveRun, LiveTrial
from ._warm import warm_frameworks

_POLL_SECONDS = 0.25
_PROGRESS_SECONDS = 1.0
Event = Came | Refused | Heard | RunEnded | Asked


class Driver:
    """Drives one experiment until it ends or is paused.

    `run` does it all, in the thread that calls it; `pause` and `kill` may be called from any thread and from
    signal handlers. Raises ExperimentBusy when another driver holds the experiment.
    """

    def __init__(self, settings: DriverSettings, experiment_id: int, plugins: Plugins) -> None:
        self.failures = ExperimentFailures()
        self.engine: Engine = plugins.engines()[settings.engine].load()(self._process_ended)
        self._settings = settings
        self._id = experiment_id
        self._plugins = plugins
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._next_progress = 0.0

    # From any thread

    def pause(self) -> None:
        """Checkpoint every trial and end."""
        self._inbox.put(Asked("pause", "the experiment is paused"))

    def kill(self) -> None:
        """End every run at once; what is not checkpointed is lost."""
        self._inbox.put(Asked("kill", "the experiment is killed"))

    def _process_ended(self, run_id: int, status: int, rank: int = 0, unstarted: str = "") -> None:
        """The engine's word; from any thread."""
        self._inbox.put(RunEnded(run_id, status, rank, unstarted))

    # The driver's thread

    def run(self) -> ExperimentState:
        """Drive the experiment; return the state that it ends in."""
        with Store(self._settings.home) as self._store:
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
                    with self._listening() as starter:
                        self._drive(starter)
                    return self._end()
                except StoreUnwritable as error:
                    # A worker without a driver saves and ends, and notes its checkpoint for the next one.
                    self._runs.let_go(self._inbox)
                    return self._paused(error)
                except Exception:  # whatever is wrong here, it is not the runs: each saves, for the next driver
                    self._runs.let_go(self._inbox)
                    raise

    def _begin(self) -> None:
        patience = from_json(self._store.experiments.get(self._id).config).patience
        end_leftovers(self._store, self._id, patience, lambda: self._inbox.qsize() > 1)
        adopt_spooled(self._store, self._id)
        collect_left(self._store, self._plugins)
        self._state = State(self._store, self._id, self._plugins)
        self._runs = Fleet(self.engine, self._state, self._settings, self._inbox.put)
        self._endings = Endings(self._state, self.failures)
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
            )
            self._state.observe("det_experiment_started")

    @contextmanager
    def _listening(self) -> Iterator[Starter]:
        state, settings = self._state, self._settings
        warm = warm_frameworks(state.config, settings, self._plugins, self._store.code_dir(self._id))
        key = secrets.token_bytes(32)
        host = driver_address(hosts_of(state.config))
        server = wire.Server(key, on_connect=lambda c: serve(c, self._inbox.put), host=host)
        try:
            yield Starter(state=state, settings=settings, address=server.address, key=key, warm=warm)
        finally:
            server.close()

    def _drive(self, starter: Starter) -> None:
        next_poll = 0.0
        while True:
            self._follow_closes()
            self._runs.start_what_is_due(starter)
            if not self._runs.running and (self._state.wish is not None or self._state.queue.first is None):
                return
            with suppress(queue.Empty):
                self._take(self._inbox.get(timeout=_POLL_SECONDS))
            if time.monotonic() >= next_poll:
                next_poll = time.monotonic() + _POLL_SECONDS
                self._poll()

    def _take(self, event: Event) -> None:
        """Take what was heard; one of a run that has ended is of no more interest."""
        match event:
            case Asked():
                self._asked(event)
            case RunEnded():
                self._run_ended(event)
            case Came() | Refused() | Heard():
                live = self._runs.running.get(event.hello.run_id)
                if live is not None and live.active is not None:
                    self._spoken(live, live.active, event)
                elif isinstance(event, Came):
                    event.connection.close()

    def _spoken(self, live: LiveTrial, active: ActiveRun, event: Came | Refused | Heard) -> None:
        match event:
            case Came():
                came(active, event)
            case Refused():
                active.finished(event.hello.rank, Finished(Outcome.MISTAKE, event.reason))
            case Heard():
                try:
                    heard(self._state, live, active, event)
                except StoreUnwritable:
                    raise
                except Exception as error:  # what a word breaks is its run's failure, and nobody else's
                    if not broke(active, event, error):
                        self._runs.preempt(live, "what it said could not be taken")

    def _poll(self) -> None:
        """Do what is done now and then, whatever happens: it may look at every trial."""
        for command in self._store.commands.take(self._id):
            self._asked(Asked(command.kind, f"det {command.kind}", for_good=True))
        self._runs.poll()
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + _PROGRESS_SECONDS
            self._store.experiments.update(self._id, progress=self._state.progress)

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
            for live in self._state.trials.values():
                if live.plan.exited is None:
                    final = TrialState.CANCELED if state is ExperimentState.CANCELED else TrialState.PAUSED
                    self._store.trials.update(live.id, state=final)
            if collects:
                self._state.then(lambda: collect_garbage(self._store, self._id, self._plugins))
            self._state.observe("det_experiment_finished", state=str(state))
        return state

    # Runs

    def _run_ended(self, event: RunEnded) -> None:
        live, active = self._runs.take_back(event)
        with self._state.turn():
            self._endings.settle(live, active, event.status)
            outcome = outcome_of(active, event.status)
            self._store.runs.end(event.run_id, outcome)
            if active.outcome is Outcome.BLOCKED:
                self._state.then(lambda: self._asked(Asked("block", active.message)))
            if live.plan.closed:
                self._state.closed.append(live)
            self._state.then(lambda: self._state.queue.add(live))
            self._state.observe(
                "det_run_finished",
                trial=self._state.row(live),
                run=self._store.runs.get(event.run_id),
                outcome=outcome,
            )

    def _follow_closes(self) -> None:
        """End the runs of trials that the searcher closed; those that have none are complete."""
        while self._state.closed:
            live = self._state.closed.popleft()
            if live.plan.exited is not None:
                continue
            if live.active is None:
                with self._state.turn():
                    self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)
            elif not live.active.preempting:
                self._runs.preempt(live, "the searcher closed the trial")

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

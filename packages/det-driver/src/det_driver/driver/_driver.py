"""The driver: one thread that hears of everything in order, journals it, and acts on it.

Connections, processes, signals and commands only put messages into its inbox; the store is written in its thread alone. An
event is committed before what follows from it is done, so that a driver killed at any instant is replaced by one that
replays the journal.
"""

from __future__ import annotations

import os
import queue
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from det_core import wire
from det_core.errors import DetError
from det_core.launch import hosts_of
from det_core.plugins import Plugins

from ..engines import Engine
from ..search import Exit
from ..store import ExperimentState, Lease, Store, TrialState, boot_id
from ._connections import Connections, preempt
from ._endings import Endings, ExperimentFailures, exit_status
from ._recover import abandon, adopt_spooled, collect_garbage, end_leftovers
from ._search import SearchStarted
from ._starting import DriverSettings, Starter, clear_scratch, driver_address
from ._state import State
from ._trials import LiveTrial, Turns
from ._warm import warm_frameworks

_POLL_SECONDS = 0.25
_PROGRESS_SECONDS = 1.0
_PATIENCE_SECONDS = 600


class Driver:
    """Drives one experiment until it ends or is paused.

    `run` does it all, in the thread that calls it; `pause`, `cancel` and `kill` may be called from any thread and from
    signal handlers. Raises ExperimentBusy when another driver holds the experiment.
    """

    def __init__(self, settings: DriverSettings, experiment_id: int, plugins: Plugins) -> None:
        self.failures = ExperimentFailures()
        self.engine: Engine = plugins.engines()[settings.engine].load()(self._process_ended)
        self._settings = settings
        self._id = experiment_id
        self._plugins = plugins
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: dict[int, LiveTrial] = {}  # by the run's id
        self._wished_at = 0.0
        self._next_progress = 0.0

    # From any thread

    def pause(self) -> None:
        """Checkpoint every trial and end."""
        self._inbox.put(lambda: self._stop_all(ExperimentState.PAUSED, "the experiment is paused"))

    def cancel(self) -> None:
        """Checkpoint every trial and end for good."""
        self._inbox.put(lambda: self._stop_all(ExperimentState.CANCELED, "the experiment is canceled"))

    def kill(self) -> None:
        """End every run at once; what is not checkpointed is lost."""
        self._inbox.put(self._kill_all)

    # The driver's thread

    def run(self) -> ExperimentState:
        """Drive the experiment; return the state that it ends in."""
        with Store(self._settings.home) as store, store.lock(self._id):
            self._store = store
            try:
                return self._run()
            except BaseException:
                with suppress(DetError):  # the first error is the one to tell
                    abandon(store, self._id)
                raise

    def _run(self) -> ExperimentState:
        try:
            self._begin()
            with self._listening():
                self._drive()
            return self._end()
        finally:
            self._end_everything()

    def _begin(self) -> None:
        end_leftovers(self._store, self._id)
        adopt_spooled(self._store, self._id)
        with self._store.transaction():
            self._state = State(self._store, self._id, self._plugins)
        code_dir = self._store.code_dir(self._id)
        self._warm = warm_frameworks(self._state.config, self._settings, self._plugins, code_dir)
        self._hosts = hosts_of(self._state.config)
        each = self._state.config.resources.slots_per_trial
        total = each if self._hosts else self._settings.slots
        self._turns = Turns(self._store, self._id, self._state.queue, each=each, total=total)
        self._endings = Endings(self._state, self.failures)
        if not self._state.search.plans:
            self._state.happened(SearchStarted())
        self._store.commands.take(self._id)  # what was asked of an earlier driver is no longer meant
        started = self._store.experiments.get(self._id).started or time.time()
        self._store.experiments.update(
            self._id, state=ExperimentState.ACTIVE, started=started, ended=None, pid=os.getpid(), boot=boot_id()
        )
        self._state.observe("det_experiment_started")

    @contextmanager
    def _listening(self) -> Iterator[None]:
        key = secrets.token_bytes(32)
        connections = Connections(self._state, self._running, self._inbox.put)
        server = wire.Server(key, on_connect=connections.serve, host=driver_address(self._hosts))
        self._starter = Starter(
            state=self._state, settings=self._settings, address=server.address, key=key, warm=self._warm
        )
        try:
            yield
        finally:
            server.close()

    def _drive(self) -> None:
        next_poll = 0.0
        while True:
            self._follow_closes()
            while self._state.wish is None and (turn := self._turns.next(len(self._running))) is not None:
                self._start(*turn)
            if self._finished():
                return
            with suppress(queue.Empty):
                self._inbox.get(timeout=_POLL_SECONDS)()
            if time.monotonic() >= next_poll:
                next_poll = time.monotonic() + _POLL_SECONDS
                self._poll()

    def _poll(self) -> None:
        """Do what is done now and then, whatever happens: it may look at every trial."""
        self._turns.look_again()
        self._obey_commands()
        self._lose_patience()
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + _PROGRESS_SECONDS
            self._store.experiments.update(self._id, progress=self._state.progress)

    def _finished(self) -> bool:
        if self._running:
            return False
        return self._state.wish is not None or self._state.queue.first is None

    def _end(self) -> ExperimentState:
        state = self._state.wish or self._endings.final_state()
        with self._store.transaction():
            self._store.experiments.update(
                self._id, state=state, ended=time.time(), progress=self._state.progress, pid=None, boot=None
            )
            for live in self._state.trials.values():
                if live.plan.exited is None:
                    final = TrialState.CANCELED if state is ExperimentState.CANCELED else TrialState.PAUSED
                    self._store.trials.update(live.id, state=final)
        if state is not ExperimentState.PAUSED and not self.failures.resumable:
            collect_garbage(self._store, self._id, self._state.config, self._plugins, self._state.checkpoint_root)
        self._state.observe("det_experiment_finished", state=str(state))
        return state

    # Runs

    def _start(self, live: LiveTrial, lease: Lease) -> None:
        row = self._state.row(live)
        batches = self._store.checkpoints.get(row.latest_checkpoint).batches if row.latest_checkpoint else 0
        run = self._state.begin(live, lease, batches)
        self._running[run.id] = live
        assert live.active is not None
        live.active.launched = bool(self._hosts)
        self.engine.start(self._starter.spec(live, row))
        self._state.observe("det_run_started", trial=row, run=run)

    def _process_ended(self, run_id: int, status: int, rank: int = 0) -> None:
        """The engine's word; from any thread."""
        self._inbox.put(lambda: self._run_ended(run_id, status, rank))

    def _run_ended(self, run_id: int, status: int, rank: int) -> None:
        live = self._running.pop(run_id)
        active = self._state.end(live)
        if self._state.trial_class:
            active.ended(rank, status)  # the process of a script is no rank, but starts them
        for connection in active.connections:
            connection.close()
        clear_scratch(active.run)
        self._store.slots.release(active.lease)
        self._turns.look_again()
        with self._store.transaction():
            self._endings.settle(live, active, status)
            outcome = str(active.outcome.value) if active.outcome else active.message or exit_status(status)
            self._store.runs.end(run_id, outcome)
        if live.blocked:
            self._stop_all(ExperimentState.ERROR, active.message)
        if live.plan.closed:
            self._state.closed.append(live)
        self._state.queue.add(live)
        self._follow_closes()
        self._state.observe(
            "det_run_finished", trial=self._state.row(live), run=self._store.runs.get(run_id), outcome=outcome
        )

    def _follow_closes(self) -> None:
        """End the runs of trials that the searcher closed; those that have none are complete."""
        while self._state.closed:
            live = self._state.closed.popleft()
            if live.plan.exited is not None:
                continue
            if live.active is None:
                self._state.exit(live, Exit.COMPLETED, TrialState.COMPLETED)
            elif not live.active.preempting:
                self._preempt(live, "the searcher closed the trial")

    # The end

    def _preempt(self, live: LiveTrial, reason: str) -> None:
        active = live.active
        assert active is not None
        preempt(active, reason)
        if not active.connections and not self._state.trial_class:
            self.engine.terminate(active.run.id)  # a script that does not use the Core API, or not yet

    def _stop_all(self, wish: ExperimentState, reason: str) -> None:
        self._state.wish = self._state.wish if self._state.wish is ExperimentState.ERROR else wish
        self._wished_at = time.monotonic()
        for live in self._running.values():
            if live.active and not live.active.preempting:
                self._preempt(live, reason)

    def _kill_all(self) -> None:
        self._state.wish = self._state.wish or ExperimentState.PAUSED
        for run_id in self._running:
            self.engine.kill(run_id)

    def _lose_patience(self) -> None:
        """Kill runs that were asked to end long ago."""
        patience = self._state.config.preemption_timeout or _PATIENCE_SECONDS
        if self._state.wish is not None and time.monotonic() - self._wished_at > patience:
            self._kill_all()

    def _obey_commands(self) -> None:
        for command in self._store.commands.take(self._id):
            match command.kind:
                case "pause":
                    self._stop_all(ExperimentState.PAUSED, "det pause")
                case "cancel":
                    self._stop_all(ExperimentState.CANCELED, "det cancel")
                case "kill":
                    self._state.wish = ExperimentState.CANCELED
                    self._kill_all()

    def _end_everything(self) -> None:
        """Leave no process behind, whatever went wrong."""
        for run_id, live in self._running.items():
            self.engine.kill(run_id)
            if live.active:
                self._store.slots.release(live.active.lease)
        self.engine.close()

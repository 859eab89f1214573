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

import msgspec

from det_core import wire
from det_core.errors import DetError
from det_core.host import Outcome
from det_core.launch import hosts_of
from det_core.plugins import Plugins
from det_core.protocol import (
    Answer,
    Finished,
    Hello,
    Meet,
    Preempt,
    Welcome,
    Word,
    decode_word,
    encode,
    refusal,
    welcome,
)

from ..engines import Engine
from ..search import Exit
from ..store import ExperimentState, Lease, Store, TrialState, boot_id
from . import _events as events
from ._abandon import abandon
from ._answers import answer
from ._collect import collect_garbage
from ._hosts import driver_address
from ._recover import adopt_spooled, clear_scratch, end_leftovers
from ._settings import DriverSettings
from ._settle import Failures, Settle, exit_status
from ._state import State
from ._trials import Active, Live
from ._turns import Turns
from ._usable import no_usable_metric
from ._variables import run_spec, run_variables
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
        self.failures = Failures()
        self.engine: Engine = plugins.engines()[settings.engine].load()(self._process_ended)
        self._settings = settings
        self._id = experiment_id
        self._plugins = plugins
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._key = secrets.token_bytes(32)
        self._by_run: dict[int, Live] = {}
        self._wish: ExperimentState | None = None  # what to become when the runs have ended: PAUSED, CANCELED or ERROR
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
        self._settle = Settle(self._state, self.failures, lambda: self._wish, self._block)
        if not self._state.search.plans:
            self._state.happened(events.Started())
        self._store.commands.take(self._id)  # what was asked of an earlier driver is no longer meant
        started = self._store.experiments.get(self._id).started or time.time()
        self._store.experiments.update(
            self._id, state=ExperimentState.ACTIVE, started=started, ended=None, pid=os.getpid(), boot=boot_id()
        )
        self._state.observe("det_experiment_started")

    @contextmanager
    def _listening(self) -> Iterator[None]:
        server = wire.Server(self._key, on_connect=self._serve, host=driver_address(self._hosts))
        self._address = server.address
        try:
            yield
        finally:
            server.close()

    def _drive(self) -> None:
        next_poll = 0.0
        while True:
            self._follow_closes()
            while self._wish is None and (turn := self._turns.next(len(self._by_run))) is not None:
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
        if self._by_run:
            return False
        return self._wish is not None or self._state.queue.first is None

    def _end(self) -> ExperimentState:
        state = self._wish or self._final_state()
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

    def _final_state(self) -> ExperimentState:
        ended = [live.plan.exited for live in self._state.trials.values()]
        good = any(exit in (Exit.COMPLETED, Exit.USER_STOPPED) for exit in ended)
        if not good:
            self.failures.messages = self.failures.messages or self.failures.declined
        elif unusable := no_usable_metric(self._state):
            self.failures.messages.append(unusable)
            good = False
        return ExperimentState.COMPLETED if good else ExperimentState.ERROR

    # Runs

    def _start(self, live: Live, lease: Lease) -> None:
        row = self._state.row(live)
        batches = self._store.checkpoints.get(row.latest_checkpoint).batches if row.latest_checkpoint else 0
        run = self._state.begin(live, lease, batches)
        self._by_run[run.id] = live
        variables = run_variables(self._state, self._settings, live, row, self._address, self._key)
        assert live.active is not None
        live.active.launched = bool(self._hosts)
        self.engine.start(run_spec(self._state, self._settings, live.active, variables, self._warm))
        self._state.observe("det_run_started", trial=row, run=run)

    def _process_ended(self, run_id: int, status: int, rank: int = 0) -> None:
        """The engine's word; from any thread."""
        self._inbox.put(lambda: self._run_ended(run_id, status, rank))

    def _run_ended(self, run_id: int, status: int, rank: int) -> None:
        live = self._by_run.pop(run_id)
        active = self._state.end(live)
        if self._state.trial_class:
            active.ended(rank, status)  # the process of a script is no rank, but starts them
        for connection in active.connections:
            connection.close()
        clear_scratch(active.run)
        self._store.slots.release(active.lease)
        self._turns.look_again()
        with self._store.transaction():
            self._settle(live, active, status)
            outcome = str(active.outcome.value) if active.outcome else active.message or exit_status(status)
            self._store.runs.end(run_id, outcome)
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

    # Connections

    def _serve(self, connection: wire.Connection) -> None:
        """Read one worker's words into the inbox; runs in the connection's own thread."""
        try:
            hello = decode_word(connection.recv(timeout=30))
            if not isinstance(hello, Hello):
                return
            ours = welcome()
            if refused := refusal(hello, ours):
                self._inbox.put(lambda: self._refused(hello, refused))
                _send(connection, ours)
                connection.close()
                return
            _send(connection, ours)
            self._inbox.put(lambda: self._connected(hello, connection))
            while True:
                word = decode_word(connection.recv())
                self._inbox.put(lambda word=word: self._hear(hello, connection, word))  # type: ignore[misc]
        except (wire.ConnectionLost, TimeoutError, OSError, msgspec.DecodeError):
            connection.close()

    def _connected(self, hello: Hello, connection: wire.Connection) -> None:
        live = self._by_run.get(hello.run_id)
        if live is None or live.active is None:
            connection.close()
            return
        live.active.connections.append(connection)
        if live.active.preempting:
            _send(connection, Preempt("the run is to end"))

    def _refused(self, hello: Hello, reason: str) -> None:
        """Take it as the last word of a worker that it speaks another protocol; it ends of itself."""
        live = self._by_run.get(hello.run_id)
        if live is not None and live.active is not None:
            live.active.finished(hello.rank, Finished(Outcome.MISTAKE, reason))

    def _hear(self, hello: Hello, connection: wire.Connection, word: Word) -> None:
        live = self._by_run.get(hello.run_id)
        if live is None or live.active is None:
            return
        if isinstance(word, Meet):
            _meet(live.active, connection, word.address)
            return
        try:
            reply = answer(self._state, live, live.active, word, hello.rank)
        except DetError as error:
            reply = Answer(error=str(error))
        if reply is not None:
            _send(connection, reply)
        self._follow_closes()

    # The end

    def _preempt(self, live: Live, reason: str) -> None:
        active = live.active
        assert active is not None
        active.preempting = True
        for connection in active.connections:
            _send(connection, Preempt(reason))
        if not active.connections and not self._state.trial_class:
            self.engine.terminate(active.run.id)  # a script that does not use the Core API, or not yet

    def _stop_all(self, wish: ExperimentState, reason: str) -> None:
        self._wish = self._wish if self._wish is ExperimentState.ERROR else wish
        self._wished_at = time.monotonic()
        for live in self._by_run.values():
            if live.active and not live.active.preempting:
                self._preempt(live, reason)

    def _block(self, reason: str) -> None:
        self._stop_all(ExperimentState.ERROR, reason)

    def _kill_all(self) -> None:
        self._wish = self._wish or ExperimentState.PAUSED
        for run_id in self._by_run:
            self.engine.kill(run_id)

    def _lose_patience(self) -> None:
        """Kill runs that were asked to end long ago."""
        patience = self._state.config.preemption_timeout or _PATIENCE_SECONDS
        if self._wish is not None and time.monotonic() - self._wished_at > patience:
            self._kill_all()

    def _obey_commands(self) -> None:
        for command in self._store.commands.take(self._id):
            match command.kind:
                case "pause":
                    self._stop_all(ExperimentState.PAUSED, "det pause")
                case "cancel":
                    self._stop_all(ExperimentState.CANCELED, "det cancel")
                case "kill":
                    self._wish = ExperimentState.CANCELED
                    self._kill_all()

    def _end_everything(self) -> None:
        """Leave no process behind, whatever went wrong."""
        for run_id, live in self._by_run.items():
            self.engine.kill(run_id)
            if live.active:
                self._store.slots.release(live.active.lease)
        self.engine.close()


def _meet(active: Active, connection: wire.Connection, address: tuple[str, int] | None) -> None:
    """Pass on where the ranks of a run meet; those that ask before it is known are told then."""
    active.meeting = address or active.meeting
    active.waiting.append(connection)
    if active.meeting is not None:
        for each in active.waiting:
            _send(each, Answer(address=active.meeting))
        active.waiting.clear()


def _send(connection: wire.Connection, reply: Answer | Preempt | Welcome) -> None:
    try:
        connection.send(encode(reply))
    except (wire.ConnectionLost, TimeoutError, OSError):
        connection.close()

"""The runs of an experiment that are executing: started, asked to end, and killed where they do not."""

from __future__ import annotations

import errno
import os
import queue
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from det_core.errors import StoreError
from det_core.launch import hosts_of

from ..engines import Engine
from ..store import Lease
from ._connections import preempt
from ._starting import DriverSettings, Starter, clear_scratch
from ._state import State
from ._trials import ActiveRun, LiveTrial

_POLL_SECONDS = 0.25
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
_PASSES = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""What keeps a process from being started now, and may not later."""
_SPARE = 10  # descriptors for a process that is being started, the store, logs


@dataclass(frozen=True)
class RunEnded:
    """The engine says that a run's processes have ended, or with `unstarted` why they never began."""

    run_id: int
    status: int
    rank: int = 0
    unstarted: str = ""


@dataclass(frozen=True)
class Asked:
    """Somebody wants the experiment to `pause`, to `cancel`, or to `kill` its runs (and be CANCELED with `for_good`)."""

    kind: str
    why: str
    for_good: bool = False


class Fleet:
    """What a driver does with its engine; `ended` takes the word of a run that could not be started.

    Slots are leased for the trials of the queue, in order of creation. Where they were refused, they are asked for again
    when a run ends, and now and then, as they come back from other experiments, too.
    """

    def __init__(
        self, engine: Engine, state: State, settings: DriverSettings, ended: Callable[[RunEnded], None]
    ) -> None:
        self.running: dict[int, LiveTrial] = {}  # by the run's id
        self._engine, self._state, self._ended = engine, state, ended
        resources = state.config.resources
        self._each, self._most = resources.slots_per_trial, resources.max_slots
        there = [f"{host.name}/{k}" for host in hosts_of(state.config) for k in range(host.slots)]
        self._devices = there[: self._each] or settings.devices()
        self._refused = False
        self._waits = False  # on the waiting list of slots
        self._starts_at, self._backoff = 0.0, _FIRST_BACKOFF_SECONDS

    def start_what_is_due(self, starter: Starter) -> None:
        """Start the trials whose turn it is, as long as there are slots and the machine can."""
        state = self._state
        while state.wish is None and not self._refused and time.monotonic() >= self._starts_at:
            live = state.queue.first
            if live is None:
                if self._waits:
                    self._waits = False
                    state.store.slots.stop_waiting(state.id)
                return
            lease = self._lease()
            if lease is None:
                self._refused = self._waits = True
                return
            self._start(live, lease, starter)

    def _lease(self) -> Lease | None:
        if self._each == 0 and len(self.running) >= max(len(self._devices), 1):
            return None  # what needs no slot is to leave some of the machine, too
        return self._state.store.slots.lease(self._state.id, self._each, self._devices, most=self._most)

    def _start(self, live: LiveTrial, lease: Lease, starter: Starter) -> None:
        state = self._state
        with state.turn():
            row = state.row(live)
            batches = state.store.checkpoints.get(row.latest_checkpoint).batches if row.latest_checkpoint else 0
            run = state.begin(live, lease, batches)
            state.then(lambda: self._launch(run.id, live, lease, starter))
            state.observe("det_run_started", trial=state.row(live), run=run)

    def _launch(self, run_id: int, live: LiveTrial, lease: Lease, starter: Starter) -> None:
        """Have the engine start a run; where the machine cannot just now, it is as if it had ended at once."""
        self.running[run_id] = live
        try:
            self._find_descriptors()
            self._engine.start(starter.spec(live, self._state.row(live)))
        except Exception as error:
            if not isinstance(error, OSError) or error.errno not in _PASSES:
                del self.running[run_id]  # nobody would say that it has ended
                self._state.store.slots.release(lease)
                raise
            self._ended(RunEnded(run_id, 1, unstarted=error.strerror or str(error)))

    def _find_descriptors(self) -> None:
        """Raise OSError where those are not left that a run takes here, and those that are to come will."""
        runs = [live.active for live in self.running.values() if live.active]
        coming = sum(max(1, len(active.lease.slots)) for active in runs if not active.connections)
        with ExitStack() as found:
            for _ in range(_SPARE + coming):
                found.enter_context(open(os.devnull, "rb", buffering=0))

    def take_back(self, event: RunEnded) -> tuple[LiveTrial, ActiveRun]:
        """Free what a run held that has ended, and wait with the next start where it could not be started."""
        live = self.running.pop(event.run_id)
        active, live.active = live.active, None
        assert active is not None
        if event.unstarted:
            active.unstarted = event.unstarted
            self._starts_at = time.monotonic() + self._backoff
            self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF_SECONDS)
        else:
            self._starts_at, self._backoff = 0.0, _FIRST_BACKOFF_SECONDS  # it has given back what it had
            if self._state.trial_class:
                active.ended(event.rank, event.status)  # the process of a script is no rank, but starts them
        for connection in active.connections:
            connection.close()
        clear_scratch(active.run)
        self._state.store.slots.release(active.lease)
        self._refused = False
        return live, active

    def preempt(self, live: LiveTrial, reason: str) -> None:
        """Ask a run to save and end within its patience."""
        active = live.active
        assert active is not None
        preempt(active, reason)
        active.deadline = time.monotonic() + self._state.config.patience
        self._terminate_strangers(active)

    def preempt_all(self, reason: str) -> None:
        """Ask every run that has not been asked."""
        for live in self.running.values():
            if live.active and not live.active.preempting:
                self.preempt(live, reason)

    def let_go(self, inbox: queue.SimpleQueue[Any]) -> None:
        """Wait until every run has saved and ended by itself, as their connections are closed; then kill what is left."""
        for live in self.running.values():
            if live.active:
                self._terminate_strangers(live.active)
        deadline = time.monotonic() + self._state.config.patience
        while self.running and time.monotonic() < deadline:
            with suppress(queue.Empty):
                match inbox.get(timeout=_POLL_SECONDS):
                    case RunEnded(run_id=run_id):
                        self.running.pop(run_id, None)
                    case Asked(kind="kill"):
                        return

    def _terminate_strangers(self, active: ActiveRun) -> None:
        if not active.connections and not self._state.trial_class:
            self._engine.terminate(active.run.id)  # a script that does not use the Core API, or not yet

    def poll(self) -> None:
        """Kill runs that were asked to end long ago, and ask for slots again."""
        self._refused = False
        now = time.monotonic()
        for run_id, live in self.running.items():
            if live.active and now > live.active.deadline:
                self._engine.kill(run_id)

    def kill_all(self) -> None:
        """End every run at once."""
        for run_id in self.running:
            self._engine.kill(run_id)

    def close(self) -> None:
        """Leave no process behind, whatever went wrong."""
        self.kill_all()
        for live in self.running.values():
            if live.active:
                with suppress(StoreError):  # whoever leases next takes back what a dead process held
                    self._state.store.slots.release(live.active.lease)

"""The runs of an experiment that are executing: started, asked to end, and killed where they do not."""

from __future__ import annotations

import errno
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_core.agent import PASSES
from det_core.errors import StoreError, StoreUnwritable
from det_core.host import Outcome
from det_core.launch import hosts_of, say
from det_core.process import end_leftover
from det_core.protocol import Finished

from ..engines import Ended, Engine, Joined, Node, RunSpec, machine_of
from ..store import Lease
from ._lifecycle import waits_for
from ._starting import DriverSettings, Starter, clear_scratch
from ._state import State
from ._trials import ActiveRun, LiveTrial

_POLL_SECONDS, _SOON_SECONDS = 0.25, 5.0
_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS = 1.0, 60.0
_AT_ONCE = 100


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

    def __init__(self, engine: Engine, state: State, settings: DriverSettings, ended: Callable[[Ended], None]) -> None:
        self.running: dict[int, LiveTrial] = {}  # by the run's id
        self._engine, self._state, self._ended = engine, state, ended
        self._each, self._most = state.config.resources.slots_per_trial, state.config.resources.max_slots
        there = [f"{host.name}/{k}" for host in hosts_of(state.config) for k in range(host.slots)]
        self._devices = tuple(there[: self._each]) or settings.devices()
        self._refused = self._waits = False  # on the waiting list of slots
        self._said = ""
        self._began = time.monotonic()
        self._starts_at, self._backoff = 0.0, _FIRST_BACKOFF_SECONDS
        self._freed: list[Lease] = []

    def start_what_is_due(self, starter: Starter) -> None:
        """Start the trials whose turn it is, as long as there are slots and the machine can; many with one commit."""
        state = self._state
        self._give_back()
        while state.wish is None and not self._refused and time.monotonic() >= self._starts_at:
            if (live := state.queue.first) is None:
                if self._waits:
                    self._waits = False
                    state.store.slots.stop_waiting(state.id)
                return
            node, leases = self._lease(min(len(state.queue), _AT_ONCE))
            state.show_preparing(not leases and bool(self._engine.preparing()))
            if leases:
                with state.group():
                    for lease in leases:
                        if (live := state.queue.first) is not None:
                            self._start(live, node, lease, starter)
                        else:
                            self._freed.append(lease)
            else:
                self._refused = self._waits = True
                self._want(self._room(len(state.queue)))
                if not self.running:
                    self._say(self._awaited())

    def prepare(self) -> None:
        """Have room made for a first run, which takes a while, before it is decided which one that is."""
        if not self.running and (self._state.open or not self._state.search.plans):
            self._want(1)

    def _want(self, runs: int) -> None:
        try:
            self._engine.want(runs, self._each)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise StoreUnwritable(f"no agent can be started: {error.strerror}") from error
            if error.errno not in PASSES:
                raise

    def _room(self, waiting: int) -> int:
        """Return for how many of those that wait there may be slots."""
        if self._most is None or self._each == 0:
            return waiting
        return min(waiting, (self._most - len(self.running) * self._each) // self._each)

    def _give_back(self) -> None:
        """Give back what runs had that have ended."""
        if self._freed:
            self._state.store.slots.release(*self._freed)
            self._freed.clear()

    def _lease(self, count: int) -> tuple[Node, list[Lease]]:
        if self._each == 0:  # what needs no slot is to leave some of the machine, too
            count = min(count, max(len(self._devices), 1) - len(self.running))
        slots, nodes = self._state.store.slots, self._engine.nodes()
        slots.holder = self._engine.holder  # looked up after its machines, as an agent may have come just now
        for node in nodes:
            devices = self._devices if node.devices is None else node.devices
            fits = node.devices is None or self._each <= len(devices)
            if fits and (leases := slots.leases(self._state.id, self._each, devices, most=self._most, count=count)):
                return node, leases
        return self._lease_of_several()

    def _lease_of_several(self) -> tuple[Node, list[Lease]]:
        """Spread a trial over several machines where none is large enough; a script's ranks are its launcher's."""
        nodes = [node for node in self._engine.nodes() if node.devices]
        node = Node.of([each for each in nodes if each.gpus] or nodes)
        devices = node.devices or ()
        largest = max((len(n.devices or ()) for n in nodes), default=0)
        if not self._state.trial_class or not largest < self._each <= len(devices):
            return node, []
        return node, self._state.store.slots.leases(self._state.id, self._each, devices, most=self._most)

    def _awaited(self) -> str:
        """Say for what trials wait; nothing as long as that is what always comes before the first run."""
        if self._engine.nodes():
            return waits_for(self._state.store, self._state.id, self._each)
        engine = self._state.store.experiments.get(self._state.id).engine
        if why := self._engine.awaited():
            return f"for {self._each} slot{'s' * (self._each != 1)} of the engine {engine}: {why}"
        late = time.monotonic() > self._began + _SOON_SECONDS
        return self._engine.preparing() or f"for the engine {engine} to place an agent" * late

    def _say(self, why: str) -> None:
        """Tell the observers once what nothing goes on for."""
        if why and why != self._said:
            self._state.plugins.observe("det_trials_waiting", experiment=self._state.view, why=why)
        self._said = why

    def _start(self, live: LiveTrial, node: Node, lease: Lease, starter: Starter) -> None:
        state = self._state
        self._said = ""
        with state.turn():
            latest = state.row(live).latest_checkpoint if live.begun else None
            batches = state.store.checkpoints.get(latest).batches if latest else 0
            run = state.begin(live, lease, batches, node.host(lease.devices))
            state.then(lambda: self._launch(live, run.id, latest, node, starter))
            state.observe("det_run_started", of=live.id, run=run)

    def _launch(self, live: LiveTrial, run_id: int, latest: str | None, node: Node, starter: Starter) -> None:
        """Have the engine start a run; where the machine cannot just now, it is as if it had ended at once."""
        self.running[run_id] = live
        try:
            self._engine.start(starter.spec(live, latest, node))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in PASSES:
                self._ended(Ended(run_id, 1, unstarted=error.strerror or str(error)))
                return
            del self.running[run_id]  # nobody would say that it has ended
            self._freed += [live.active.lease] if live.active else []
            raise

    def adopt(self, specs: Iterable[RunSpec]) -> None:
        """Go on with the runs that an earlier driver started; one that has been given up since is ended."""
        state = self._state
        of = {live.id: live for live in state.trials.values()}
        state.store.slots.holder = self._engine.holder
        leases: list[Lease] = []
        for spec in specs:
            run = state.store.runs.get(spec.run_id)
            live = of[run.trial_id]
            if run.ended is not None or live.plan.exited is not None:
                self._give_up(run.id)
                continue
            say(f"run {run.number} of trial {live.id} goes on, as it did without a driver")
            leases.append(lease := Lease(state.id, spec.slots, spec.devices))
            machines = tuple(dict.fromkeys(map(machine_of, spec.devices))) if spec.of else (spec.node,)
            reports = state.store.metrics.read(trial_id=live.id, group="validation")
            at = max((report.batches for report in reports if report.run_id == run.id), default=-1)
            heard = state.store.runs.heard_of(run.id)
            live.active = active = ActiveRun(run, lease, heard=heard, adopted=True, validated_at=at, nodes=machines)
            active.launched, active.progressed_to = bool(spec.launcher), max(at, run.first_batch)
            state.queue.discard(live)
            self.running[run.id] = live
        state.store.slots.hold(*leases)

    def joined(self, event: Joined) -> None:
        """A machine is there, or can be reached again: what it has and should not is ended, and what it was told is repeated."""
        self._refused = False
        for run_id in event.runs:
            if (live := self.running.get(run_id)) is None:
                self._give_up(run_id)
            elif live.active and live.active.preempting:
                self._engine.preempt(run_id, "it was asked to before")

    def _give_up(self, run_id: int) -> None:
        """End a run that another one has replaced."""
        self._engine.signal(run_id, signal.SIGKILL)
        self._engine.settled(run_id)

    def lose(self, node: str) -> None:
        """A machine is gone, or what had its runs: each may save by itself, and is as good as preempted if it did."""
        self._refused = False
        for run_id, live in self.running.items():
            if not live.active or node not in live.active.nodes:
                continue
            live.active.finished(0, Finished(Outcome.PREEMPTED))
            if len(live.active.nodes) == 1:  # else the engine ends what is left of it, and says when
                threading.Thread(target=self._watch, args=(run_id, live.active.run.log_dir), daemon=True).start()

    def _watch(self, run_id: int, log_dir: Path) -> None:
        end_leftover(log_dir, self._state.config.patience)
        self._ended(Ended(run_id, -signal.SIGKILL))

    def take_back(self, event: Ended) -> tuple[LiveTrial, ActiveRun]:
        """Free what a run held that has ended, and wait with the next start where it could not be started."""
        live = self.running.pop(event.run)
        active, live.active = live.active, None
        assert active is not None
        if event.unstarted:
            active.unstarted = event.unstarted
            self._starts_at = time.monotonic() + self._backoff
            self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF_SECONDS)
            if not self.running:
                self._say(f"until this machine can start a process: {event.unstarted}")
        elif event.unstartable:
            active.finished(0, Finished(Outcome.BLOCKED, f"its run cannot be started: {event.unstartable}"))
        else:
            self._starts_at, self._backoff = 0.0, _FIRST_BACKOFF_SECONDS  # it has given back what it had
            if self._state.trial_class or event.fenced:  # the process of a script is no rank, but starts them
                active.ended(event.rank, event.status, event.fenced)
        clear_scratch(active.run)
        self._freed.append(active.lease)
        self._refused = False
        return live, active

    def preempt(self, live: LiveTrial, reason: str, patience: float | None = None, *, told: bool = False) -> None:
        """Ask a run, unless it was told, to save and end within a patience, by default the configuration's; else it is killed."""
        active = live.active
        assert active is not None
        active.preempting = True
        active.deadline = time.monotonic() + (self._state.config.patience if patience is None else patience)
        if not told:
            self._engine.preempt(active.run.id, reason)

    def preempt_all(self, reason: str) -> None:
        """Ask every run that has not been asked."""
        for live in (each for each in self.running.values() if each.active and not each.active.preempting):
            self.preempt(live, reason)

    def let_go(self, inbox: queue.SimpleQueue[Any]) -> None:
        """Wait until every run has saved and ended by itself, as their connections are closed; then kill what is left."""
        self._engine.let_go()
        deadline = time.monotonic() + self._state.config.patience
        while self.running and time.monotonic() < deadline:
            with suppress(queue.Empty):
                match inbox.get(timeout=_POLL_SECONDS):
                    case Ended(run=run_id):
                        self.running.pop(run_id, None)
                    case Asked(kind="kill"):
                        return

    def poll(self) -> None:
        """Kill runs that were asked to end long ago, ask for slots again, say what is committed and has no answer."""
        self._refused = False
        if not len(self._state.queue):
            self._want(0)
        now = time.monotonic()
        with self._engine.together():
            for run_id, active in [(id, live.active) for id, live in self.running.items() if live.active]:
                if now > active.deadline:
                    self._engine.signal(run_id, signal.SIGKILL)
                for link, number in active.heard.items() - active.told.items() if active.heard != active.told else ():
                    self._engine.taken(run_id, link, number)
                    active.told[link] = number

    def kill_all(self) -> None:
        """End every run at once."""
        for run_id in self.running:
            self._engine.signal(run_id, signal.SIGKILL)

    def close(self) -> None:
        """Leave no process behind, whatever went wrong."""
        self.kill_all()
        self._freed += [live.active.lease for live in self.running.values() if live.active]
        with suppress(StoreError):  # whoever leases next takes back what a dead process held
            self._give_back()

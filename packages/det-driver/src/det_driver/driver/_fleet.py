"""The runs of an experiment that are executing: starting, preempting and killing them."""

from __future__ import annotations

import errno
import math
import queue
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from det_core.errors import StoreError, StoreUnwritable
from det_core.support.threads import start_thread
from det_core.train.host import Outcome
from det_node.agent import PASSES
from det_node.launch import hosts_of, say
from det_node.process import end_leftover
from det_node.protocol import Finished

from ..engines import Ended, Engine, Node, NodeJoined, RunSpec, machine_of, was_terminated
from ..provenance import last_written, user_of
from ..queue import DEFAULT_PRIORITY, TURN_SECONDS
from ..store import Lease
from ._lifecycle import waits_for
from ._starting import DriverSettings, Starter, clear_scratch
from ._state import State
from ._trials import ActiveRun, LiveTrial

_POLL_SECONDS, _SOON_SECONDS = 0.25, 5.0
_EXPLAIN_SECONDS = 30.0
"""How often it is said, at most, for which slots an experiment waits."""
_USER_SECONDS = 60.0
_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS = 1.0, 60.0
_AT_ONCE = 100


@dataclass(frozen=True)
class StopRequest:
    """A command to `pause` or `cancel` the experiment, or to `kill` its runs.

    A `kill` with `for_good` makes the experiment CANCELED.
    """

    kind: str
    why: str
    for_good: bool = False


class Fleet:
    """A driver's use of its engine. `ended` handles the end of a run that could not be started.

    Slots are leased for the trials of the queue, in order of creation. Slots that were refused are
    requested again when a run ends, and periodically, because other experiments release some too.
    """

    def __init__(
        self, engine: Engine, state: State, settings: DriverSettings, ended: Callable[[Ended], None]
    ) -> None:
        # By the run's id.
        self.running: dict[int, LiveTrial] = {}
        self._engine, self._state, self._ended = engine, state, ended
        self._each = state.config.resources.slots_per_trial
        # Searchers with several brackets open a trial in each. Trials beyond the limit wait.
        self._concurrent: int = getattr(state.config.searcher, "max_concurrent_trials", 0)
        names = [f"{host.name}/{k}" for host in hosts_of(state.config) for k in range(host.slots)]
        self._devices = tuple(names[: self._each]) or settings.devices()
        # `_waits`: the experiment is on the waiting list of slots.
        self._refused = self._waits = False
        self._last_reason, self._explains_at = "", 0.0
        self._began = time.monotonic()
        self._starts_at, self._backoff = 0.0, _FIRST_BACKOFF_SECONDS
        self._restarts, self._outage = settings.restarts, settings.outage
        # Since when the checkpoint storage cannot be reached, and how often runs have waited.
        self._unreachable_since, self._attempts = math.inf, 0
        self._freed: list[Lease] = []
        self._origin_written = 0
        self._set_share()

    def start_due(self, starter: Starter) -> None:
        """Start the next trials while there are slots and the nodes can. Many share one commit."""
        state = self._state
        self._pass_on(starter)
        self._release_leases()
        while not self._refused and self._may_start():
            if (due := self._count_startable()) <= 0:
                if self._waits:
                    self._waits = False
                    state.store.slots.stop_waiting(state.id)
                return
            leases = self._lease(min(due, _AT_ONCE))
            state.show_preparing(not leases and bool(self._engine.preparing()))
            if leases:
                self._start_all(leases, starter)
            else:
                self._refused = self._waits = True
                self._request(self.room(due))
                self._explain_wait()

    def _may_start(self) -> bool:
        return self._state.target_state is None and time.monotonic() >= self._starts_at

    @property
    def _most(self) -> int | None:
        """The most slots that the experiment's trials may have together."""
        steered = self._state.search.max_slots
        # A user may have removed the limit of the configuration, too.
        return self._state.config.resources.max_slots if steered is None else steered or None

    @property
    def _preempts(self) -> bool:
        """Whether others are to give slots up for it: not if its last run could not use its own."""
        return not self._attempts and self._backoff == _FIRST_BACKOFF_SECONDS

    def _set_share(self) -> None:
        """Have slots leased by the experiment's priority, weight and user."""
        resources, search = self._state.config.resources, self._state.search
        self._user = user_of(self._state.store.experiment_dir(self._state.id))
        self._state.store.slots.set_share(
            self._state.id,
            search.priority or resources.priority or DEFAULT_PRIORITY,
            resources.weight if search.weight is None else search.weight,
            self._user,
        )

    def _give_back(self) -> None:
        """Preempt the runs whose slots an experiment of a better priority needs."""
        recalled = self._state.store.slots.recalled(self._state.id)
        for live in [*self.running.values()] if recalled else ():
            if live.active is None or live.active.preempting:
                continue
            keys = map(self._engine.lease_key, live.active.lease.devices)
            needed_by = [recalled[each] for each in keys if each in recalled]
            if needed_by:
                self.preempt(
                    live, f"experiment {needed_by[0]} of a better priority needs its slots"
                )

    def find_user(self) -> None:
        """Read the experiment's owner, which a server records after the driver has started."""
        if not self._user and time.monotonic() < self._began + _USER_SECONDS:
            directory = self._state.store.experiment_dir(self._state.id)
            if (written := last_written(directory)) != self._origin_written:
                self._origin_written = written
                self._set_share()

    def follow_steering(self) -> None:
        """Apply the limits that a user has changed."""
        self._set_share()
        self._keep_to_slots()

    def _keep_to_slots(self) -> None:
        """Preempt the newest runs until the others are within the limit of slots."""
        if self._most is None or self._each == 0:
            return
        staying = [
            live for live in self.running.values() if live.active and not live.active.preempting
        ]
        for live in staying[self._most // self._each :]:
            self.preempt(
                live, f"the experiment is limited to {self._most} slot{'s' * (self._most != 1)}"
            )

    def _count_startable(self) -> int:
        """Return how many trials could be started if slots were unlimited."""
        if self._state.queue.first is None:
            return 0
        left = self._concurrent - len(self.running) if self._concurrent else len(self._state.queue)
        return min(len(self._state.queue), left)

    def prepare(self) -> None:
        """Request room for a first run before it is known which one, because this takes long."""
        if not self.running and (self._state.open or not self._state.search.plans):
            self._request(1)

    def _request(self, runs: int) -> None:
        try:
            self._engine.want(runs, self._each)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise StoreUnwritable(f"no agent can be started: {error.strerror}") from error
            if error.errno not in PASSES:
                raise

    def room(self, waiting: int) -> int:
        """Return how many of the waiting trials may get slots under the limit of slots."""
        if self._most is None or self._each == 0:
            return waiting
        return min(waiting, (self._most - len(self.running) * self._each) // self._each)

    def _release_leases(self) -> None:
        """Release the leases of runs that have ended."""
        if self._freed:
            self._state.store.slots.release(*self._freed)
            self._freed.clear()

    def _pass_on(self, starter: Starter) -> None:
        """Start the next trials on the slots of those that have just ended.

        With many experiments, to ask for a slot costs more than a trial that reports a few times.
        So an experiment keeps a slot for 0.3 seconds, unless a better priority needs it.
        """
        slots = self._state.store.slots
        leases = [each for each in self._freed if 0 <= slots.age(each) < TURN_SECONDS]
        if not leases or not self._may_start() or self._engine.holder != slots.holder:
            return
        recalled = slots.recalled(self._state.id)
        nodes = [(node, self._names(node)) for node in self._engine.nodes()]
        kept = [
            (node, each)
            for each in leases
            for node, devices in nodes
            if each.devices
            and all(device in devices for device in each.devices)
            and recalled.keys().isdisjoint(map(self._engine.lease_key, each.devices))
        ][: max(0, self.room(self._count_startable()))]
        self._freed = [each for each in self._freed if each not in [lease for _, lease in kept]]
        self._start_all(kept, starter)

    def _lease(self, count: int) -> list[tuple[Node, Lease]]:
        """Lease slots for `count` trials, or for as many as possible, each with its node."""
        # Trials without slots must not occupy the whole host either.
        if self._each == 0:
            count = min(count, max(len(self._devices), 1) - len(self.running))
        nodes = self._engine.nodes()
        # Read after the nodes, because an agent may have connected just now.
        self._follow_engine()
        by_node = [(self._names(node), node) for node in nodes]
        fitting = [
            (devices, node)
            for devices, node in by_node
            if node.devices is None or self._each <= len(devices)
        ]
        if not fitting:
            return self._lease_of_several()
        leases = self._state.store.slots.leases(
            self._state.id,
            self._each,
            [device for devices, _ in fitting for device in devices],
            machines=[len(devices) for devices, _ in fitting] if len(fitting) > 1 else (),
            most=self._most,
            count=count,
            preempts=self._preempts,
        )
        of = {device: node for devices, node in fitting for device in devices}
        # A trial without slots may run on any node.
        return [
            (of[lease.devices[0]] if lease.devices else fitting[0][1], lease) for lease in leases
        ]

    def _names(self, node: Node) -> tuple[str, ...]:
        """Return the devices of a node, which on this machine are those that the driver found."""
        return self._devices if node.devices is None else node.devices

    def _follow_engine(self) -> None:
        """Have slots leased as the engine says."""
        slots, engine = self._state.store.slots, self._engine
        slots.holder, slots.fence, slots.key = engine.holder, engine.fence, engine.lease_key

    def _lease_of_several(self) -> list[tuple[Node, Lease]]:
        """Lease slots on several nodes where no node is large enough for a trial.

        The ranks of a script are placed by its launcher instead.
        """
        nodes = [node for node in self._engine.nodes() if node.devices]
        node = Node.of([each for each in nodes if each.gpus] or nodes)
        devices = node.devices or ()
        if not devices or not self._state.trial_class or self._each > len(devices):
            return []
        leases = self._state.store.slots.leases(
            self._state.id, self._each, devices, most=self._most, preempts=self._preempts
        )
        return [(node, lease) for lease in leases]

    def _explain_wait(self) -> None:
        """Notify observers why nothing trains, unless runs do."""
        now = time.monotonic()
        if self.running or now < self._explains_at:
            return
        if self._engine.nodes():
            # The experiments before it change with each of their trials.
            self._explains_at = now + _EXPLAIN_SECONDS
            self._notify_waiting(waits_for(self._state.store, self._state.id, self._each))
        else:
            self._notify_waiting(self._explain_engine())

    def _explain_engine(self) -> str:
        """Return why the engine has no node, or "" during the usual wait before the first run."""
        engine = self._state.store.experiments.get(self._state.id).engine
        if why := self._engine.explain_wait():
            return f"for {self._each} slot{'s' * (self._each != 1)} of the engine {engine}: {why}"
        late = time.monotonic() > self._began + _SOON_SECONDS
        return self._engine.preparing() or f"for the engine {engine} to place an agent" * late

    def _notify_waiting(self, why: str) -> None:
        """Notify observers, once, why nothing trains."""
        if why and why != self._last_reason:
            self._state.plugins.observe("det_trials_waiting", experiment=self._state.view, why=why)
        self._last_reason = why

    def _start_all(self, leases: Sequence[tuple[Node, Lease]], starter: Starter) -> None:
        """Start the next trials, one for each lease, in one commit."""
        if leases:
            with self._state.group():
                for node, lease in leases:
                    if (live := self._state.queue.first) is not None:
                        self._start(live, node, lease, starter)
                    else:
                        self._freed.append(lease)

    def _start(self, live: LiveTrial, node: Node, lease: Lease, starter: Starter) -> None:
        state = self._state
        self._last_reason = ""
        with state.transaction():
            latest = state.row(live).latest_checkpoint if live.begun else None
            batches = state.store.checkpoints.get(latest).batches if latest else 0
            run = state.begin(live, lease, batches, node.host(lease.devices))
            state.after_commit(lambda: self._launch(live, run.id, latest, node, starter))
            state.observe("det_run_started", of=live.id, run=run)

    def _launch(
        self, live: LiveTrial, run_id: int, latest: str | None, node: Node, starter: Starter
    ) -> None:
        """Have the engine start a run. One that the node cannot start now counts as ended."""
        self.running[run_id] = live
        try:
            self._engine.start(starter.spec(live, latest, node))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in PASSES:
                self._ended(Ended(run_id, 1, unstarted=error.strerror or str(error)))
                return
            # No end would be reported for it.
            del self.running[run_id]
            self._freed += [live.active.lease] if live.active else []
            raise

    def resume_runs(self, specs: Iterable[RunSpec]) -> None:
        """Continue the runs that an earlier driver started. Those given up since are ended."""
        state = self._state
        of = {live.id: live for live in state.trials.values()}
        self._follow_engine()
        leases: list[Lease] = []
        for spec in specs:
            run = state.store.runs.get(spec.run_id)
            live = of[run.trial_id]
            if run.ended is not None or live.plan.exited is not None:
                self._kill_replaced(run.id)
                continue
            say(f"run {run.number} of trial {live.id} goes on, as it did without a driver")
            leases.append(lease := Lease(state.id, spec.slots, spec.devices))
            machines = (
                tuple(dict.fromkeys(map(machine_of, spec.devices)))
                if spec.world_size
                else (spec.node,)
            )
            reports = state.store.metrics.read(trial_id=live.id, group="validation")
            at = max((report.batches for report in reports if report.run_id == run.id), default=-1)
            acked = state.store.runs.read_acked(run.id)
            live.active = active = ActiveRun(
                run, lease, acked=acked, adopted=True, validated_at=at, nodes=machines
            )
            active.launched, active.progressed_to = bool(spec.launcher), max(at, run.first_batch)
            state.queue.discard(live)
            self.running[run.id] = live
        state.store.slots.hold(state.id, *leases)

    def joined(self, event: NodeJoined) -> None:
        """Handle a node that has connected, for the first time or again.

        Runs that it should not have are ended, and preemptions are repeated.
        """
        self._refused = False
        for run_id in event.runs:
            if (live := self.running.get(run_id)) is None:
                self._kill_replaced(run_id)
            elif live.active and live.active.preempting:
                self._engine.preempt(run_id, "it was asked to before")

    def _kill_replaced(self, run_id: int) -> None:
        """Kill a run that another one has replaced."""
        self._engine.signal(run_id, signal.SIGKILL)
        self._engine.acknowledge_end(run_id)

    def mark_lost(self, node: str) -> None:
        """Handle a lost node. Its runs may save by themselves, and then count as preempted."""
        self._refused = False
        for run_id, live in self.running.items():
            if not live.active or node not in live.active.nodes:
                continue
            live.active.finished(0, Finished(Outcome.PREEMPTED))
            # The engine itself ends the rest of a run on several nodes, and reports its end.
            if len(live.active.nodes) == 1:
                start_thread(
                    self._watch,
                    run_id,
                    live.active.run.log_dir,
                    name="det-lost",
                    failed=partial(self._over, run_id),
                )

    def _over(self, run_id: int, error: BaseException | None = None) -> None:
        self._ended(Ended(run_id, -signal.SIGKILL))

    def _watch(self, run_id: int, log_dir: Path) -> None:
        end_leftover(log_dir, self._state.config.patience)
        self._over(run_id)

    def release_run(self, event: Ended) -> tuple[LiveTrial, ActiveRun]:
        """Free what an ended run held. Delay the next start where it could not be started."""
        live = self.running.pop(event.run)
        active, live.active = live.active, None
        assert active is not None
        if event.unstarted:
            active.unstarted = event.unstarted
            self._starts_at = time.monotonic() + self._backoff
            self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF_SECONDS)
            why = f"until a process can be started: {event.unstarted}"
            if not self.running:
                self._notify_waiting(why)
            elif why != self._last_reason:
                # Other trials run, so that no observer is notified.
                self._last_reason = why
                say(f"trial {live.id} waits {why}")
        elif event.unstartable:
            active.finished(
                0, Finished(Outcome.BLOCKED, f"its run cannot be started: {event.unstartable}")
            )
        elif active.outcome is Outcome.UNREACHABLE:
            active.waits = self._waits_for_storage(active.message)
        else:
            self._unreachable_since, self._attempts = math.inf, 0
            # Its resources are free again.
            self._starts_at, self._backoff = 0.0, _FIRST_BACKOFF_SECONDS
            is_leaving = any(map(self._engine.is_leaving, active.nodes))
            if is_leaving and active.outcome is None and was_terminated(event.status):
                # It was just starting, and could not save yet.
                active.finished(0, Finished(Outcome.PREEMPTED))
            # The process of a script is no rank, but starts the ranks.
            elif self._state.trial_class or event.fenced:
                active.ended(event.rank, event.status, event.fenced)
        clear_scratch(active.run)
        self._freed.append(active.lease)
        self._refused = False
        return live, active

    def _waits_for_storage(self, why: str) -> bool:
        """Delay the next start, longer each time.

        Returns whether the storage has been unreachable for less than the longest outage.
        """
        now = time.monotonic()
        self._unreachable_since = min(self._unreachable_since, now)
        if now - self._unreachable_since >= self._outage:
            return False
        # Concurrent runs find the storage unreachable at the same time, and count once.
        if now >= self._starts_at:
            pause = self._restarts[min(self._attempts, len(self._restarts) - 1)]
            self._starts_at, self._attempts = now + pause, self._attempts + 1
            self._notify_waiting(f"for its checkpoint storage, {self._outage:g} s at most: {why}")
        return True

    def preempt(
        self, live: LiveTrial, reason: str, patience: float | None = None, *, notified: bool = False
    ) -> None:
        """Ask a run to save and end within `patience` seconds, by default the configured ones.

        Otherwise it is killed. With `notified` the run knows already.
        """
        active = live.active
        assert active is not None
        active.preempting = True
        patience = self._state.config.patience if patience is None else patience
        active.patience, active.deadline = patience, time.monotonic() + patience
        # A script that handles only SIGTERM gets it after half of the time.
        active.terminate_at = active.deadline - patience / 2
        if not notified:
            self._engine.preempt(active.run.id, reason)

    def preempt_all(self, reason: str) -> None:
        """Preempt every run that is not preempted yet."""
        for live in (
            each for each in self.running.values() if each.active and not each.active.preempting
        ):
            self.preempt(live, reason)

    def end_runs(self, inbox: queue.SimpleQueue[Any]) -> None:
        """Wait until every run has saved and ended by itself, because its connection is closed.

        The wait ends after the configured patience, or when a kill is requested.
        """
        self._engine.end_runs()
        deadline = time.monotonic() + self._state.config.patience
        while self.running and time.monotonic() < deadline:
            with suppress(queue.Empty):
                match inbox.get(timeout=_POLL_SECONDS):
                    case Ended(run=run_id):
                        self.running.pop(run_id, None)
                    case StopRequest(kind="kill"):
                        return

    @property
    def only_waits(self) -> bool:
        """Whether there is nothing to do until slots are free."""
        return self._waits and not self.running and not self._freed

    def look_again(self) -> None:
        """Request slots before the next start, even if there were none the last time."""
        self._refused = False

    def poll(self) -> None:
        """Do the periodic work.

        - Preempt runs whose slots an experiment of a better priority needs.
        - Kill runs that have not ended in time.
        - Request slots again.
        - Acknowledge committed messages that got no reply.
        """
        self.look_again()
        self._give_back()
        if self._count_startable() <= 0:
            self._request(0)
        now = time.monotonic()
        with self._engine.together():
            for run_id, active in [
                (id, live.active) for id, live in self.running.items() if live.active
            ]:
                if now > active.deadline:
                    active.killed = _why_killed(active.patience)
                    self._engine.signal(run_id, signal.SIGKILL)
                elif now > active.terminate_at and active.outcome is None and active.acked:
                    active.terminate_at = math.inf
                    if not self._state.trial_class:
                        self._engine.signal(run_id, signal.SIGTERM)
                for link, number in (
                    active.acked.items() - active.replied.items()
                    if active.acked != active.replied
                    else ()
                ):
                    self._engine.acknowledge(run_id, link, number)
                    active.replied[link] = number

    def kill_all(self) -> None:
        """Kill every run."""
        for run_id, live in list(self.running.items()):
            if live.active:
                live.active.killed = _why_killed(0.0)
            self._engine.signal(run_id, signal.SIGKILL)

    def close(self) -> None:
        """Kill every process, whatever went wrong."""
        self.kill_all()
        self._freed += [live.active.lease for live in self.running.values() if live.active]
        # On an error, the next lease takes the slots that a dead process held.
        with suppress(StoreError):
            self._release_leases()


def _why_killed(patience: float) -> str:
    if not patience:
        return "it was to end at once"
    return f"it was asked to save and end, and did not within {patience:g} s (preemption_timeout)"

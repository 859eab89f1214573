"""The state of a driver's experiment, and its only writer: journal, tables and search."""

from __future__ import annotations

import math
import time
from collections import deque
from functools import cached_property, partial
from typing import Any

import msgspec

from det_core.config import (
    ExperimentConfig,
    find_secrets,
    hparams_with_secrets,
    is_trial_entrypoint,
    masked_hparams,
)
from det_core.errors import DetError
from det_core.hooks import Plugins, extensions_of
from det_core.train.host import Target
from det_core.train.metrics import number_or_none
from det_core.train.schedule import NEVER
from det_node.launch import hosts_of

from ..search import Close, Create, Exit, Operation, Train
from ..store import (
    ExperimentState,
    Lease,
    Run,
    Store,
    TrialRow,
    TrialState,
    check_code,
    storage_of,
)
from ._search import (
    UNITS,
    ExperimentView,
    SearchEvent,
    SearchView,
    TrialExited,
    TrialValidated,
    encode_event,
    searcher_of,
    unit_of,
)
from ._snapshots import SavedSearch
from ._transactions import Transactions
from ._trials import ActiveRun, LiveTrial, Queue


class State(Transactions):
    """One experiment: its configuration, search and trials. The memory agrees with the journal."""

    def __init__(self, store: Store, experiment_id: int, plugins: Plugins) -> None:
        super().__init__(store, plugins)
        check_code(store, experiment_id)
        experiment = store.experiments.get(experiment_id)
        directory = store.experiment_dir(experiment_id)
        self.id = experiment_id
        self.config: ExperimentConfig = store.experiments.config(
            experiment_id, extensions_of(plugins)
        )
        self.view = ExperimentView(
            id=experiment_id,
            name=experiment.name,
            config=self.config,
            directory=directory,
            tensorboard_dir=directory / "tensorboard",
            search=self._view,
            trial=self.trial_row,
            storage=lambda: storage_of(store, experiment_id, self.config, plugins),
        )
        self.unit = unit_of(self.config)
        # By the searcher's number. `open` are the trials that have not ended.
        self.trials: dict[int, LiveTrial] = {}
        self.open: dict[int, LiveTrial] = {}
        self.queue = Queue()
        # Trials that are started again later, with the time.
        self._held: list[tuple[float, LiveTrial]] = []
        # Trials that the searcher closed and the driver has not handled yet.
        self.closed: deque[LiveTrial] = deque()
        # The target state, to be reached when the runs have ended: PAUSED, CANCELED or ERROR.
        self.target_state: ExperimentState | None = None
        # The progress before the latest series of failures, which no good trial has followed.
        self._reached: float | None = None
        self._preparing = False
        # The notices that were reported.
        self.noticed: set[str] = set()
        self._snapshots = SavedSearch(store, experiment_id)
        self._read()

    def _read(self) -> None:
        """Read the committed state from the store. The runs of trials stay as they are."""
        make = partial(searcher_of, self.config, self.plugins, self.store.code_dir(self.id))
        rows = {trial.request: trial for trial in self.store.trials.list(self.id)}
        if self._hides_hparams:
            rows = {
                request: msgspec.structs.replace(
                    row, hparams=hparams_with_secrets(row.hparams, self.config)
                )
                for request, row in rows.items()
            }
        self.search = self._snapshots.read(self.store.experiments.get(self.id), rows, make)
        self.closed.clear()
        self.queue.clear()
        known = self.trials
        self.trials, self.open = {}, {}
        for request, plan in self.search.plans.items():
            row = rows[request]
            live = known.get(request) or LiveTrial(id=row.id, plan=plan)
            live.plan, live.restarts, live.progress = plan, row.restarts, row.progress
            live.state, live.source, live.begun = row.state, row.source_checkpoint, row.runs > 0
            # An earlier driver has noted it. A trial that is done has reached another length.
            if live.progress_to is None and 0 < live.progress < 1:
                live.progress_to = plan.until
            self.trials[request] = live
            if plan.exited is not None:
                continue
            self.open[request] = live
            if plan.closed:
                self.closed.append(live)
            else:
                self.queue.add(live)

    def requeue_trials(self) -> None:
        """Set the trials of an earlier driver that have no run to queued or waiting."""
        for live in self.open.values():
            if not live.plan.closed and live.active is None:
                self.set_waiting(
                    live, TrialState.QUEUED if live.plan.runnable else TrialState.WAITING
                )

    # Facts

    @cached_property
    def _hides_hparams(self) -> bool:
        """Whether the configuration gives its trials secrets, which their rows do not hold."""
        return any(path[0] == "hyperparameters" for path, _ in find_secrets(self.config))

    @cached_property
    def trial_class(self) -> bool:
        """Whether the entrypoint is a trial class, and not a script."""
        return is_trial_entrypoint(self.config.entrypoint)

    @property
    def progress(self) -> float:
        """The progress of the search, 0 to 1. Looks at every trial that has not ended.

        Where trials failed or were canceled at the end, it is the progress before that, because
        searchers count ended trials as done.
        """
        if self._reached is not None and (self.target_state is not None or not self.open):
            return self._reached
        return self.search.progress({request: live.progress for request, live in self.open.items()})

    @property
    def best(self) -> float | None:
        """The best value of the searcher's metric so far."""
        return self.store.trials.best(self.id)

    def row(self, live: LiveTrial) -> TrialRow:
        """The trial's row in the store."""
        return self.store.trials.get(live.id)

    def target(self, live: LiveTrial, best: bool = False) -> Target:
        """Return the batch or length until which a trial trains now.

        A length in a metric that the trial reports is reached when that metric is reported.
        """
        plan = live.plan
        if not plan.runnable:
            return Target(n=None, unit="batches", best=best)
        if plan.until is None or self.unit not in UNITS:
            return Target(n=NEVER, unit="batches", best=best)
        return Target(n=plan.until, unit=self.unit, best=best)

    # Events of the search

    def append_event(self, event: SearchEvent) -> None:
        """Append an event to the journal and apply it."""
        seq = self.store.journal.append(self.id, encode_event(event))
        began = time.perf_counter()
        operations = self.search.apply(event)
        seconds = time.perf_counter() - began
        for operation in operations:
            self._follow(operation)
        self._snapshots.note_event(self.search, seq, seconds)

    def save_snapshot(self) -> None:
        """Save a snapshot of the search."""
        self._snapshots.save(self.search)

    def _follow(self, operation: Operation) -> None:
        match operation:
            case Create(trial=number, hparams=hparams, seed=seed):
                source = self._source(operation.source)
                if self._hides_hparams:
                    hparams = masked_hparams(hparams, self.config)
                row = self.store.trials.create(
                    self.id, number, hparams, seed, source_checkpoint=source
                )
                live = LiveTrial(id=row.id, plan=self.search.plans[number], source=source)
                self.trials[number] = self.open[number] = live
            case Train():
                live = self.trials[operation.trial]
                if live.queued:
                    self.set_waiting(live, TrialState.QUEUED)
                self.queue.add(live)
            case Close():
                self.closed.append(self.trials[operation.trial])

    def _source(self, source: int | None) -> str | None:
        """Return the checkpoint from which a new trial starts, or None."""
        searcher = self.config.searcher
        if source is not None:
            return self.row(self.trials[source]).latest_checkpoint
        if searcher is not None and searcher.source_trial_id is not None:
            found = self.store.trials.get(searcher.source_trial_id).latest_checkpoint
            if found is None:
                raise DetError(
                    f"searcher.source_trial_id is {searcher.source_trial_id}, a trial without a"
                    " checkpoint"
                )
            return found
        return searcher.source_checkpoint_uuid if searcher is not None else None

    # Runs

    def begin(self, live: LiveTrial, lease: Lease, batches: int, host: str | None = None) -> Run:
        """Record that a run of a trial begins at a batch, on a node.

        The trial has the run after the commit.
        """
        run = self.store.runs.begin(live.id, batches, first=not live.begun, host=host)
        live.state, live.begun = TrialState.RUNNING, True
        self.queue.discard(live)
        active = ActiveRun(
            run=run, lease=lease, progressed_to=batches, launched=bool(hosts_of(self.config))
        )
        self.apply(lambda: setattr(live, "active", active))
        return run

    def set_waiting(self, live: LiveTrial, state: TrialState) -> None:
        """Set the state of a trial that has no run and continues later."""
        if live.state is not state:
            live.state = state
            self.store.trials.update(live.id, state=state)

    def show_preparing(self, preparing: bool) -> None:
        """Set whether the trials of the queue are shown as waiting for their environment."""
        if preparing or self._preparing:
            with self.group():
                for live in self.queue:
                    self.set_waiting(live, TrialState.PREPARING if preparing else TrialState.QUEUED)
        self._preparing = preparing

    def hold(self, live: LiveTrial, seconds: float) -> None:
        """Delay the next start of a trial by `seconds`."""
        if seconds > 0:
            live.held = True
            self._held.append((time.monotonic() + seconds, live))

    @property
    def holds(self) -> bool:
        """Whether a trial waits some seconds until it is started again."""
        return bool(self._held)

    def release_held(self) -> bool:
        """Queue the trials whose delay is over. Return whether others are still delayed."""
        now = time.monotonic()
        due = [live for at, live in self._held if at <= now]
        self._held = [(at, live) for at, live in self._held if at > now]
        for live in due:
            live.held = False
            self.queue.add(live)
        return bool(self._held)

    def exit(self, live: LiveTrial, reason: Exit, state: TrialState, message: str = "") -> None:
        """End a trial, which does not continue."""
        if reason not in (Exit.ERRORED, Exit.CANCELED):
            self._reached = None
        elif self._reached is None:
            self._reached = self.progress
        live.state = state
        self.store.trials.update(
            live.id, state=state, ended=time.time(), exit_reason=message or str(reason)
        )
        self.append_event(TrialExited(live.plan.request, reason))
        self.open.pop(live.plan.request, None)
        self.queue.discard(live)

    def validated(
        self,
        live: LiveTrial,
        active: ActiveRun,
        batches: int,
        metrics: dict[str, Any],
        length: int | None,
        *,
        report: bool = True,
    ) -> Target:
        """Handle a validation. Return the trial's next target.

        `length` is the target's length where this validation completes it.
        """
        best = self.is_best(metrics)
        at = (
            length
            if length is not None and length < NEVER
            else self._length(live, batches, metrics)
        )
        self.apply(lambda: setattr(active, "validated_at", batches))
        if report:
            self.reported(live, active, "validation", batches, metrics)
        self.append_event(TrialValidated(live.plan.request, at, batches, metrics))
        target = self.target(live, best)
        self.apply(lambda: setattr(active, "stopping", target.n is None))
        return target

    def _length(self, live: LiveTrial, batches: int, metrics: dict[str, Any]) -> int:
        """Return the position of a validation that does not complete the target.

        It is in the searcher's unit.
        """
        if self.unit == "batches":
            length = batches
        elif self.unit == "records":
            length = batches * int(live.plan.hparams.get("global_batch_size", 1))
        else:
            passed = number_or_none(metrics.get(self.unit))
            length = int(passed) if passed is not None and math.isfinite(passed) else 0
        if self.unit not in UNITS or live.plan.until is None:
            return length
        return min(length, live.plan.until - 1)

    def is_best(self, metrics: dict[str, Any], *, again: bool = False) -> bool:
        """Return whether a validation is the best of all trials.

        `again`: it was handled before, and the result is whether it still is the best.
        """
        searcher = self.config.searcher
        if searcher is None or not searcher.metric:
            return True
        value, best = number_or_none(metrics.get(searcher.metric)), self.best
        if again and value is not None and value == best:
            return True
        return value is not None and (
            best is None or (value < best if searcher.smaller_is_better else value > best)
        )

    # Reports

    def reported(
        self,
        live: LiveTrial,
        active: ActiveRun,
        group: str,
        batches: int,
        metrics: dict[str, Any],
        *,
        progress: float | None = None,
    ) -> None:
        """Store metrics, and the progress if it is given, and notify observers."""
        self.apply(lambda: setattr(active, "progressed_to", max(active.progressed_to, batches)))
        self.store.metrics.report(
            live.id, active.run.id, group, batches, metrics, progress=progress
        )
        self.observe(
            "det_metrics_reported", of=live.id, group=group, batches=batches, metrics=metrics
        )

    def report_notice(self, live: LiveTrial, text: str) -> None:
        """Report a notice once for all trials, because most trials meet the same."""
        if text not in self.noticed:
            self.apply(lambda: self.noticed.add(text))
            self.observe("det_trial_noticed", of=live.id, notice=text)

    def _view(self) -> SearchView:
        resting = {
            live.id: "queued" if live.queued else "waiting"
            for live in self.trials.values()
            if live.active is None and live.plan.exited is None
        }
        return SearchView(
            progress=self.progress,
            trials=len(self.trials),
            running=sum(live.active is not None for live in self.trials.values()),
            queued=len(self.queue),
            ended=len(self.trials) - len(self.open),
            rungs=self.search.rungs,
            resting=resting,
        )

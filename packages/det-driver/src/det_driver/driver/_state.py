"""What a driver knows of its experiment, and the only place that writes it: the journal, the tables, the search."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from det_core.checkpoint import Manifest
from det_core.config import Custom, ExperimentConfig, from_json, is_trial_entrypoint
from det_core.entrypoint import make_importable
from det_core.errors import DetError
from det_core.host import Target
from det_core.metrics import number_or_none
from det_core.plugins import Plugins, extensions_of
from det_core.schedule import NEVER

from ..search import Close, Create, Exit, Operation, Train
from ..store import ExperimentState, Lease, Run, Store, TrialRow, TrialState
from ._search import (
    JournaledSearch,
    SearchEvent,
    SearchView,
    TrialExited,
    TrialValidated,
    decode_event,
    encode_event,
    unit_of,
)
from ._trials import ActiveRun, Best, LiveTrial, Queue


@dataclass(frozen=True, kw_only=True)
class ExperimentView:
    """An experiment as observers see it; `search()` counts its trials, and is to be called in a hook only."""

    id: int
    name: str
    config: ExperimentConfig
    directory: Path
    tensorboard_dir: Path
    search: Callable[[], SearchView]


class State:
    """One experiment: its configuration, its search, its trials. An event is committed with all that follows from it."""

    def __init__(self, store: Store, experiment_id: int, plugins: Plugins) -> None:
        experiment = store.experiments.get(experiment_id)
        directory = store.experiment_dir(experiment_id)
        self.id = experiment_id
        self.store = store
        self.plugins = plugins
        self.config: ExperimentConfig = from_json(experiment.config, extensions=extensions_of(plugins))
        self.view = ExperimentView(
            id=experiment_id,
            name=experiment.name,
            config=self.config,
            directory=directory,
            tensorboard_dir=directory / "tensorboard",
            search=self._view,
        )
        self.unit = unit_of(self.config)
        self.trials: dict[int, LiveTrial] = {}  # by the searcher's number
        self.queue = Queue()
        self.closed: deque[LiveTrial] = (
            deque()
        )  # trials that the searcher closed, and the driver has not looked at since
        self.wish: ExperimentState | None = None  # what to become when the runs have ended: PAUSED, CANCELED or ERROR
        self.running = 0
        self.ended = 0
        self._best = Best(experiment.smaller_is_better)
        self.search = self._replayed()

    def _replayed(self) -> JournaledSearch:
        searcher = self.config.searcher
        if searcher is None:
            raise DetError(f"experiment {self.id} has no searcher; add one to its configuration")
        if isinstance(searcher, Custom):
            make_importable(self.store.code_dir(self.id))
        seed = self.config.reproducibility.experiment_seed or 0
        made = self.plugins.searchers()[searcher.name].make(searcher, self.config.hyperparameters, seed)
        journal = self.store.journal.read(self.id)
        search = JournaledSearch.replayed(made, (decode_event(event.data) for event in journal))
        rows = {trial.request: trial for trial in self.store.trials.list(self.id)}
        for request, plan in search.plans.items():
            self._take_over(LiveTrial(id=rows[request].id, plan=plan), rows[request])
        return search

    def _take_over(self, live: LiveTrial, row: TrialRow) -> None:
        """Go on with a trial of an earlier driver."""
        live.restarts, live.progress = row.restarts, row.progress
        self.trials[live.plan.request] = live
        self._best.put(live.plan.request, row.best_metric)
        if live.plan.exited is not None:
            self.ended += 1
        elif live.plan.closed:
            self.closed.append(live)
        else:
            state = TrialState.QUEUED if live.plan.runnable else TrialState.WAITING
            if state is not row.state:
                self.store.trials.update(row.id, state=state)
            self.queue.add(live)

    # Facts

    @property
    def trial_class(self) -> bool:
        """Whether the entrypoint is a trial class, and not a script."""
        return is_trial_entrypoint(self.config.entrypoint)

    @property
    def spool(self) -> Path:
        """Where workers note checkpoints that the driver could not be told of."""
        return self.view.directory / "spool"

    @property
    def checkpoint_root(self) -> Path:
        """Where checkpoints lie when the configuration names no storage."""
        return self.store.home / "checkpoints"

    @property
    def progress(self) -> float:
        """How much of the search is done, 0 to 1; looks at every trial."""
        return self.search.progress({r: t.progress for r, t in self.trials.items() if t.plan.exited is None})

    @property
    def best(self) -> float | None:
        """The best value of the searcher's metric so far."""
        return self._best.value

    def row(self, live: LiveTrial) -> TrialRow:
        """The trial as the store has it."""
        return self.store.trials.get(live.id)

    def target(self, live: LiveTrial, best: bool = False) -> Target:
        """Until when a trial is to train now."""
        plan = live.plan
        if not plan.runnable:
            return Target(n=None, unit=self.unit, best=best)
        if plan.until is None:
            return Target(n=NEVER, unit="batches", best=best)
        return Target(n=plan.until, unit=self.unit, best=best)

    # Events of the search

    def happened(self, event: SearchEvent) -> None:
        """Journal an event and apply it, in one transaction."""
        with self.store.transaction():
            self.store.journal.append(self.id, encode_event(event))
            for operation in self.search.apply(event):
                self._follow(operation)

    def _follow(self, operation: Operation) -> None:
        match operation:
            case Create():
                self._create(operation)
            case Train():
                live = self.trials[operation.trial]
                if live.queued and live.waiting:
                    live.waiting = False
                    self.store.trials.update(live.id, state=TrialState.QUEUED)
                self.queue.add(live)
            case Close():
                self.closed.append(self.trials[operation.trial])

    def _create(self, new: Create) -> None:
        source = self._source(new.source)
        row = self.store.trials.create(self.id, new.trial, new.hparams, new.seed, source_checkpoint=source)
        self.trials[new.trial] = LiveTrial(id=row.id, plan=self.search.plans[new.trial])

    def _source(self, source: int | None) -> str | None:
        """Return the checkpoint that a new trial starts from, if any."""
        searcher = self.config.searcher
        if source is not None:
            return self.row(self.trials[source]).latest_checkpoint
        if searcher is not None and searcher.source_trial_id is not None:
            found = self.store.trials.get(searcher.source_trial_id).latest_checkpoint
            if found is None:
                raise DetError(f"searcher.source_trial_id is {searcher.source_trial_id}, a trial without a checkpoint")
            return found
        return searcher.source_checkpoint_uuid if searcher is not None else None

    # Runs

    def begin(self, live: LiveTrial, lease: Lease, batches: int) -> Run:
        """Record that a run of a trial begins at a position."""
        run = self.store.runs.begin(live.id, batches)
        self.store.trials.update(live.id, state=TrialState.RUNNING)
        live.active = ActiveRun(run=run, lease=lease, progressed_to=batches)
        live.waiting = False
        self.running += 1
        self.queue.discard(live)
        if run.number > 1:
            self._best.put(live.plan.request, self.row(live).best_metric)  # what was reported past `batches` is undone
        return run

    def end(self, live: LiveTrial) -> ActiveRun:
        """Take a trial's run away, which has ended."""
        active, live.active = live.active, None
        assert active is not None
        self.running -= 1
        return active

    def rest(self, live: LiveTrial, state: TrialState) -> None:
        """A trial whose run has ended goes on later."""
        live.waiting = state is TrialState.WAITING
        self.store.trials.update(live.id, state=state)

    def exit(self, live: LiveTrial, reason: Exit, state: TrialState, message: str = "") -> None:
        """End a trial for good."""
        with self.store.transaction():
            self.store.trials.update(live.id, state=state, ended=time.time(), exit_reason=message or str(reason))
            self.happened(TrialExited(live.plan.request, reason))
        self.ended += 1
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
        """Take a validation; return the trial's next target. `length` is the target's when this completes it."""
        best = self._is_best(metrics)
        at = length if length is not None and length < NEVER else self._length(live, batches, metrics)
        active.validated_at = batches
        with self.store.transaction():
            if report:
                self.reported(live, active, "validation", batches, metrics)
            self.happened(TrialValidated(live.plan.request, at, batches, metrics))
        return self.target(live, best)

    def _length(self, live: LiveTrial, batches: int, metrics: dict[str, Any]) -> int:
        """Return the position, in the searcher's unit, of a validation that does not complete the target."""
        if self.unit == "epochs":
            length = int(metrics.get("epochs", 0))
        elif self.unit == "records":
            length = batches * int(getattr(self.config.hyperparameters.get("global_batch_size"), "val", 1))
        else:
            length = batches
        return length if live.plan.until is None else min(length, live.plan.until - 1)

    def _is_best(self, metrics: dict[str, Any]) -> bool:
        if self.config.searcher is None or not self.config.searcher.metric:
            return True
        value = self._value(metrics)
        return value is not None and self._best.beaten_by(value)

    def _value(self, metrics: dict[str, Any]) -> float | None:
        """Return the searcher's metric among others, where it is there and a number."""
        searcher = self.config.searcher
        return number_or_none(metrics.get(searcher.metric)) if searcher and searcher.metric else None

    # Reports

    def reported(self, live: LiveTrial, active: ActiveRun, group: str, batches: int, metrics: dict[str, Any]) -> None:
        """Store metrics and tell the observers."""
        active.progressed_to = max(active.progressed_to, batches)
        self.store.metrics.report(live.id, active.run.id, group, batches, metrics)
        if group == "validation" and (value := self._value(metrics)) is not None:
            self._best.offer(live.plan.request, value)
        self.observe("det_metrics_reported", trial=self.row(live), group=group, batches=batches, metrics=metrics)

    def checkpointed(self, live: LiveTrial, active: ActiveRun, manifest: Manifest, storage: str) -> None:
        """Record a checkpoint and tell the observers."""
        checkpoint = self.store.checkpoints.record(
            manifest.uuid,
            live.id,
            active.run.id,
            manifest.batches,
            storage=storage,
            size=sum(file.size for file in manifest.files.values()),
            metadata=manifest.metadata,
            framework=manifest.framework,
        )
        self.observe("det_checkpoint_saved", trial=self.row(live), checkpoint=checkpoint)

    def observe(self, hook: str, **arguments: Any) -> None:
        """Tell the observers of this experiment."""
        self.plugins.observe(hook, experiment=self.view, **arguments)

    def _view(self) -> SearchView:
        return SearchView(
            progress=self.progress,
            trials=len(self.trials),
            running=self.running,
            queued=len(self.queue),
            ended=self.ended,
            rungs=tuple(replace(rung) for rung in self.search.rungs),
        )

"""What a driver knows of its experiment, and the only place that writes it: the journal, the tables, the search."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..checkpoint import Manifest
from ..config import ExperimentConfig, from_json, is_trial_entrypoint
from ..errors import DetError
from ..host import Target
from ..loop import number_or_none
from ..plugins import Plugins
from ..schedule import NEVER
from ..searchers import Create, Exit
from ..store import Store, Trial, TrialState
from . import _events as events
from ._search import Search
from ._trials import Active, Live
from ._unit import unit_of
from ._views import ExperimentView


class State:
    """One experiment: its configuration, its search, its trials. An event is committed with all that follows from it."""

    def __init__(self, store: Store, experiment_id: int, plugins: Plugins) -> None:
        experiment = store.experiments.get(experiment_id)
        directory = store.experiment_dir(experiment_id)
        self.id = experiment_id
        self.store = store
        self.plugins = plugins
        self.config: ExperimentConfig = from_json(experiment.config)
        self.view = ExperimentView(
            id=experiment_id,
            name=experiment.name,
            config=self.config,
            directory=directory,
            tensorboard_dir=directory / "tensorboard",
        )
        self.unit = unit_of(self.config)
        self.trials: dict[int, Live] = {}  # by the searcher's number
        self.search = self._replayed()

    def _replayed(self) -> Search:
        searcher = self.config.searcher
        if searcher is None:
            raise DetError(f"experiment {self.id} has no searcher; add one to its configuration")
        seed = self.config.reproducibility.experiment_seed or 0
        record = self.plugins.searchers()[str(type(searcher).__struct_config__.tag)]
        made = record.make(searcher, self.config.hyperparameters, seed)
        journal = [events.decode(event.data) for event in self.store.journal.read(self.id)]
        search = Search.replayed(made, journal)
        rows = {trial.request: trial for trial in self.store.trials.list(self.id)}
        for request, plan in search.plans.items():
            row = rows[request]
            self.trials[request] = Live(id=row.id, plan=plan, restarts=row.restarts, progress=row.progress)
        return search

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
        """How much of the search is done, 0 to 1."""
        return self.search.progress({r: t.progress for r, t in self.trials.items() if t.plan.exited is None})

    @property
    def best(self) -> float | None:
        """The best value of the searcher's metric so far."""
        trials = self.store.trials.list(self.id, best_first=True, limit=1)
        return trials[0].best_metric if trials else None

    def row(self, live: Live) -> Trial:
        """The trial as the store has it."""
        return self.store.trials.get(live.id)

    def target(self, live: Live, best: bool = False) -> Target:
        """Until when a trial is to train now."""
        plan = live.plan
        if not plan.runnable:
            return Target(n=None, unit=self.unit, best=best)
        if plan.until is None:
            return Target(n=NEVER, unit="batches", best=best)
        return Target(n=plan.until, unit=self.unit, best=best)

    # Events of the search

    def happened(self, event: events.Event) -> None:
        """Journal an event and apply it, in one transaction."""
        with self.store.transaction():
            self.store.journal.append(self.id, events.encode(event))
            for operation in self.search.apply(event):
                if isinstance(operation, Create):
                    self._create(operation)

    def exit(self, live: Live, reason: Exit, state: TrialState, message: str = "") -> None:
        """End a trial for good."""
        with self.store.transaction():
            self.store.trials.update(live.id, state=state, ended=time.time(), exit_reason=message or str(reason))
            self.happened(events.Exited(live.plan.request, reason))

    def validated(
        self,
        live: Live,
        active: Active,
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
            self.happened(events.Validated(live.plan.request, at, batches, metrics))
        return self.target(live, best)

    # Reports

    def reported(self, live: Live, active: Active, group: str, batches: int, metrics: dict[str, Any]) -> None:
        """Store metrics and tell the observers."""
        active.progressed_to = max(active.progressed_to, batches)
        self.store.metrics.report(live.id, active.run.id, group, batches, metrics)
        self.observe("det_metrics_reported", trial=self.row(live), group=group, batches=batches, metrics=metrics)

    def checkpointed(self, live: Live, active: Active, manifest: Manifest, storage: str) -> None:
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

    # Inside

    def _create(self, operation: Create) -> None:
        row = self.store.trials.create(
            self.id,
            operation.trial,
            operation.hparams,
            operation.seed,
            source_checkpoint=self._source(operation.source),
        )
        self.trials[operation.trial] = Live(id=row.id, plan=self.search.plans[operation.trial])

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

    def _length(self, live: Live, batches: int, metrics: dict[str, Any]) -> int:
        """Return the position, in the searcher's unit, of a validation that does not complete the target."""
        if self.unit == "epochs":
            length = int(metrics.get("epochs", 0))
        elif self.unit == "records":
            size = self.config.hyperparameters.get("global_batch_size")
            length = batches * int(getattr(size, "val", 1))
        else:
            length = batches
        return length if live.plan.until is None else min(length, live.plan.until - 1)

    def _is_best(self, metrics: dict[str, Any]) -> bool:
        searcher = self.config.searcher
        if searcher is None or not searcher.metric:
            return True
        value, best = number_or_none(metrics.get(searcher.metric)), self.best
        if value is None:
            return False
        return best is None or (value < best if searcher.smaller_is_better else value > best)

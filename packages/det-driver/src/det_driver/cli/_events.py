"""The events that `det run --json` prints, one on each line. The last one has the result.

Times are unix seconds. Positions are batches from the trial's start. NaN and infinities are text:
"NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from det_core.hooks.hookspecs import hookimpl

from ..client import Space
from ._console import print_json
from ._progress import Silent


class ProgressEvent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="event"):
    """What all events have."""

    time: float
    """When it happened."""
    experiment: int
    """The experiment's number."""


class ExperimentStarted(ProgressEvent, tag="experiment_started"):
    """A driver has begun, for the first time or again."""

    name: str
    """The experiment's name."""
    metric: str
    """The searcher's metric."""
    smaller_is_better: bool
    """Whether a smaller value of it is the better one."""


class TrialsWaiting(ProgressEvent, tag="trials_waiting"):
    """Trials are to run, and none does."""

    why: str
    """For what they wait, and who holds it."""


class RunStarted(ProgressEvent, tag="run_started"):
    """A run of a trial starts."""

    trial: int
    """The trial's number."""
    run: int
    """The run's number within the trial, from 1."""
    batches: int
    """Where it begins."""
    hparams: dict[str, Any]
    """The trial's hyperparameters."""
    chosen: dict[str, Any]
    """Those of them that the search chose, by dotted names."""


class MetricsReported(ProgressEvent, tag="metrics_reported"):
    """A trial has reported."""

    trial: int
    """The trial's number."""
    group: str
    """Such as `training` or `validation`."""
    batches: int
    """The trial's position."""
    metrics: dict[str, Any]
    """What was reported, by name."""
    progress: float
    """How much of the trial is done, 0 to 1."""
    best: float | None
    """The trial's best value of the searcher's metric so far."""


class TrialNoticed(ProgressEvent, tag="trial_noticed"):
    """Something should be known of a trial that goes on."""

    trial: int
    """The trial's number."""
    notice: str
    """What, in a sentence."""


class CheckpointSaved(ProgressEvent, tag="checkpoint_saved"):
    """A checkpoint is published and recorded."""

    trial: int
    """The trial's number."""
    batches: int
    """Its position."""
    uuid: str
    """Its name in the storage."""
    size: int
    """In bytes."""


class RunFinished(ProgressEvent, tag="run_finished"):
    """A run has ended."""

    trial: int
    """The trial's number."""
    run: int
    """The run's number within the trial, from 1."""
    batches: int
    """The trial's position."""
    outcome: str
    """How it ended, in a word, or in a sentence."""
    reason: str | None
    """Why it failed, where it did."""
    state: str
    """What the trial is now."""


class BestCheckpoint(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The best checkpoint, or the latest where none was measured."""

    uuid: str
    """Its name in the storage."""
    path: str
    """Where it lies."""
    batches: int
    """Its position."""
    trial: int | None = None
    """Its trial. Another one may have the best value, if its checkpoint is gone."""
    metric: Any = None
    """The searcher's metric there."""
    loader: str = ""
    """The function that loads it."""


class ExperimentFinished(ProgressEvent, tag="experiment_finished"):
    """The driver ends; the last line."""

    name: str
    """The experiment's name."""
    state: str
    """COMPLETED, ERROR, CANCELED or PAUSED."""
    reason: str | None
    """Why, where something went wrong."""
    seconds: float | None
    """Since it began for the first time."""
    trials: dict[str, int]
    """How many trials are in which state."""
    metric: str
    """The searcher's metric."""
    best_metric: Any
    """Its best value."""
    best_trial: int | None
    """The trial that has it."""
    best_hparams: dict[str, Any]
    """What was chosen for that trial, by dotted names."""
    importances: dict[str, float]
    """The share, 0 to 1, of the trials' differences that each hyperparameter alone explains."""
    trial_class: bool
    """Whether the entrypoint is a trial class, and no script."""
    checkpoint: BestCheckpoint | None
    """The best checkpoint."""


EVENTS = (
    ExperimentStarted,
    TrialsWaiting,
    RunStarted,
    MetricsReported,
    TrialNoticed,
    CheckpointSaved,
    RunFinished,
    ExperimentFinished,
)


class EventView(Silent):
    """Prints each event when it happens."""

    def __init__(self) -> None:
        self._id = 0
        self._space = Space({})

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        self._id, self._space = experiment.id, Space(experiment.config.hyperparameters)
        searcher = experiment.config.searcher
        metric, smaller = (
            (searcher.metric or "", searcher.smaller_is_better) if searcher else ("", True)
        )
        self._say(ExperimentStarted, name=experiment.name, metric=metric, smaller_is_better=smaller)

    @hookimpl
    def det_trials_waiting(self, why: str) -> None:
        self._say(TrialsWaiting, why=why)

    @hookimpl
    def det_run_started(self, trial: Any, run: Any) -> None:
        hparams, chosen = trial.hparams, self._space.chosen(trial.hparams)
        self._say(
            RunStarted,
            trial=trial.id,
            run=run.number,
            batches=run.first_batch,
            hparams=hparams,
            chosen=chosen,
        )

    @hookimpl
    def det_metrics_reported(
        self, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        where = {"trial": trial.id, "group": group, "batches": batches}
        self._say(
            MetricsReported,
            **where,
            metrics=dict(metrics),
            progress=trial.progress,
            best=trial.best_metric,
        )

    @hookimpl
    def det_trial_noticed(self, trial: Any, notice: str) -> None:
        self._say(TrialNoticed, trial=trial.id, notice=notice)

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        self._say(
            CheckpointSaved,
            trial=trial.id,
            batches=checkpoint.batches,
            uuid=checkpoint.uuid,
            size=checkpoint.size,
        )

    @hookimpl
    def det_run_finished(self, trial: Any, run: Any, outcome: str) -> None:
        what = {"outcome": outcome, "reason": run.reason, "state": str(trial.state)}
        self._say(RunFinished, trial=trial.id, run=run.number, batches=trial.batches, **what)

    def _say(self, kind: type[ProgressEvent], **facts: Any) -> None:
        print_event(kind(time=time.time(), experiment=self._id, **facts))


def print_event(event: ProgressEvent) -> None:
    """Print an event as one line, at once."""
    print_json(msgspec.to_builtins(event, str_keys=True))
    sys.stdout.flush()

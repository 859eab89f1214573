"""The records that the store returns: frozen structs, one for each kind of row."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec

from det_driver.store._schema import OUTSIDE
from det_node.task import find_kind


class ExperimentState(StrEnum):
    """The state of an experiment."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    CANCELED = "CANCELED"

    @property
    def ended(self) -> bool:
        """Whether it has ended: completed, failed or canceled."""
        return self not in (ExperimentState.ACTIVE, ExperimentState.PAUSED)


class TrialState(StrEnum):
    """The state of a trial.

    - PREPARING: its environment is being made.
    - QUEUED: it waits for a slot.
    - WAITING: it has no slot and needs none until the searcher decides.
    """

    PREPARING = "PREPARING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    CANCELED = "CANCELED"
    INVALID_HP = "INVALID_HP"

    @property
    def ended(self) -> bool:
        """Whether it will not run again."""
        return self in (
            TrialState.COMPLETED,
            TrialState.ERROR,
            TrialState.CANCELED,
            TrialState.INVALID_HP,
        )


class CheckpointState(StrEnum):
    """The state of a checkpoint's files. The files of a DAMAGED one differ from those written."""

    COMPLETED = "COMPLETED"
    PARTIALLY_DELETED = "PARTIALLY_DELETED"
    DELETED = "DELETED"
    DAMAGED = "DAMAGED"


class ExperimentRow(msgspec.Struct, frozen=True):
    """One experiment.

    - Times are Unix seconds, and `config` is JSON text.
    - `pid` and `boot` identify its newest driver.
    - `engine` is the name of the engine of its runs.
    - `reason` says why it ended or paused, if that is known.
    - `journal` is the version of the journal's events.
    - `det` is the version of det-driver that drove it last.
    """

    id: int
    name: str
    description: str
    labels: tuple[str, ...]
    config: str
    entrypoint: str
    metric: str
    smaller_is_better: bool
    engine: str
    state: ExperimentState
    archived: bool
    progress: float
    created: float
    started: float | None
    ended: float | None
    reason: str | None
    pid: int | None
    boot: str | None
    journal: int = 1
    det: str | None = None

    @property
    def outside(self) -> bool:
        """Whether det did not start its script, and so cannot stop or resume it."""
        return self.engine == OUTSIDE

    @property
    def task(self) -> str:
        """The kind of task that runs instead of a training, such as `command`, or ""."""
        return find_kind(self.entrypoint)

    @property
    def abandoned(self) -> str:
        """A sentence that says what to do where it is ACTIVE and has lost its process."""
        if self.outside:
            return f"the script of experiment {self.id} was killed; run it again as you did before"
        return f"the driver of experiment {self.id} is gone; go on with: det resume {self.id}"


class TrialRow(msgspec.Struct, frozen=True):
    """One trial.

    Positions are batches from its start. Metrics are values of the searcher's metric.
    """

    id: int
    experiment_id: int
    request: int
    hparams: dict[str, Any]
    seed: int
    state: TrialState
    batches: int
    restarts: int
    runs: int
    progress: float
    best_metric: float | None
    best_batches: int | None
    latest_metric: float | None
    latest_checkpoint: str | None
    source_checkpoint: str | None
    started: float | None
    ended: float | None
    exit_reason: str | None


class Run(msgspec.Struct, frozen=True):
    """One attempt to train a trial, which began at position `first_batch`.

    - `number` counts the attempts from 1.
    - `backend` is the backend that reduces the gradients of several ranks.
    - `reason` says why the run failed.
    - `host` names its hosts, if they are known.
    - `origin` names the recorded environment of its first rank.
    """

    id: int
    trial_id: int
    number: int
    first_batch: int
    log_dir: Path
    started: float
    ended: float | None
    outcome: str | None
    backend: str | None = None
    reason: str | None = None
    host: str | None = None
    origin: str | None = None


class Metric(msgspec.Struct, frozen=True):
    """The values reported for one group at one position of a trial."""

    trial_id: int
    run_id: int
    group: str
    batches: int
    time: float
    values: dict[str, Any]
    archived: bool


class CheckpointRow(msgspec.Struct, frozen=True):
    """One checkpoint.

    `validation` holds the values validated at its position, and `metric` the searcher's among them.
    """

    uuid: str
    trial_id: int
    run_id: int
    batches: int
    state: CheckpointState
    storage: str
    size: int
    metadata: dict[str, Any]
    created: float
    framework: str
    validation: dict[str, Any] | None
    metric: float | None


class ModelRow(msgspec.Struct, frozen=True):
    """One model of the registry.

    - Times are Unix seconds.
    - `versions` counts its versions, and `latest` is the highest number of one.
    - `aliases` maps each alias to the number of its version.
    """

    id: int
    name: str
    description: str
    notes: str
    labels: tuple[str, ...]
    metadata: dict[str, Any]
    archived: bool
    created: float
    updated: float
    versions: int
    latest: int | None
    aliases: dict[str, int]


class ModelVersionRow(msgspec.Struct, frozen=True):
    """One version of a model: the checkpoint `uuid`.

    `version` counts the versions of the model from 1. Times are Unix seconds.
    """

    id: int
    model_id: int
    model: str
    version: int
    uuid: str
    name: str
    notes: str
    labels: tuple[str, ...]
    metadata: dict[str, Any]
    aliases: tuple[str, ...]
    created: float
    updated: float


class Event(msgspec.Struct, frozen=True):
    """One event of an experiment's journal.

    `seq` counts from 1 without a gap, and `data` is JSON.
    """

    seq: int
    time: float
    data: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """A search after the event `seq`, written by version `det` in a `format`.

    `state` includes the state of the searcher, in that searcher's `version`.
    """

    seq: int
    det: str
    format: int
    version: int
    state: bytes


class CommandRow(msgspec.Struct, frozen=True):
    """A command for an experiment's driver."""

    kind: str
    args: dict[str, Any]
    sent: float


class AlertRow(msgspec.Struct, frozen=True):
    """An alert to one webhook that is not sent yet.

    `due` is when it is tried next. A dead one is not. `error` says why the last attempt failed.
    """

    experiment_id: int
    seq: int
    id: str
    webhook: str
    kind: str
    content: dict[str, Any]
    created: float
    attempts: int
    due: float
    dead: Literal[0, 1]
    error: str | None


class Lease(msgspec.Struct, frozen=True):
    """The devices that a driver holds until it releases them or dies.

    `slots` are their indices among the devices that it may use.
    """

    experiment_id: int
    slots: tuple[int, ...]
    devices: tuple[str, ...]


class RunSpan(msgspec.Struct, frozen=True):
    """When a run ran, in unix seconds, and the state of its trial now."""

    started: float
    ended: float
    state: TrialState


class ExperimentSummary(msgspec.Struct, frozen=True):
    """An experiment with the number of its trials by state, and its best trial."""

    experiment: ExperimentRow
    trials: dict[TrialState, int]
    best_metric: float | None
    best_trial: int | None

    @property
    def shown(self) -> str:
        """The state, or PREPARING while trials wait for their environment and none runs."""
        preparing = self.trials.get(TrialState.PREPARING) and not self.trials.get(
            TrialState.RUNNING
        )
        return (
            "PREPARING"
            if preparing and self.experiment.state is ExperimentState.ACTIVE
            else str(self.experiment.state)
        )


def show_progress(progress: float) -> str:
    """Return progress from 0 to 1 as a whole percentage, which is 100 at the end only.

    The page rounds in the same way.
    """
    return f"{math.floor(100 * min(1.0, max(0.0, progress)) + 1e-9)}%"

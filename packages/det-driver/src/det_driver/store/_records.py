"""What the store gives back: frozen records, one for each kind of row."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec


class ExperimentState(StrEnum):
    """Where an experiment stands."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    CANCELED = "CANCELED"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self not in (ExperimentState.ACTIVE, ExperimentState.PAUSED)


class TrialState(StrEnum):
    """Where a trial stands.

    PREPARING has its environment made, QUEUED wants a slot, WAITING has none and wants none until the searcher speaks.
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
        return self in (TrialState.COMPLETED, TrialState.ERROR, TrialState.CANCELED, TrialState.INVALID_HP)


class CheckpointState(StrEnum):
    """What is left of a checkpoint's files."""

    COMPLETED = "COMPLETED"
    PARTIALLY_DELETED = "PARTIALLY_DELETED"
    DELETED = "DELETED"


class ExperimentRow(msgspec.Struct, frozen=True):
    """One experiment; times are unix seconds, `config` is JSON text, `pid` and `boot` name its newest driver.

    `engine` is the name of what executes its runs, `reason` says why it ended or paused, where that is known. `journal` is the
    version of the journal's events, `det` that of the det-driver that drove it last.
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


class TrialRow(msgspec.Struct, frozen=True):
    """One trial; positions are batches from its start, the metrics are values of the searcher's metric."""

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
    """One attempt of a trial, the `number`-th from 1, which began at position `first_batch`.

    `backend` is what reduces the gradients of its ranks, where there are several; `reason` says why it failed, and `host`
    names the machine, or machines, as far as that was noted; `origin` names what the run's first rank ran in.
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
    """One checkpoint; `validation` holds the values validated at its position, `metric` the searcher's among them."""

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


class Event(msgspec.Struct, frozen=True):
    """One line of an experiment's journal; `seq` counts from 1 without a gap, `data` is JSON."""

    seq: int
    time: float
    data: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """A search after the event `seq`, written by `det` in a `format`; `state` has its searcher's, of that searcher's `version`."""

    seq: int
    det: str
    format: int
    version: int
    state: bytes


class CommandRow(msgspec.Struct, frozen=True):
    """What somebody asked an experiment's driver to do."""

    kind: str
    args: dict[str, Any]
    sent: float


class Lease(msgspec.Struct, frozen=True):
    """The devices that a driver holds until it releases them or dies; `slots` are their places among those it may use."""

    experiment_id: int
    slots: tuple[int, ...]
    devices: tuple[str, ...]


class ExperimentSummary(msgspec.Struct, frozen=True):
    """An experiment with its trials counted by state, and the best of them by the searcher's metric."""

    experiment: ExperimentRow
    trials: dict[TrialState, int]
    best_metric: float | None
    best_trial: int | None

    @property
    def shown(self) -> str:
        """The state, and PREPARING while trials wait for their environment and none runs."""
        preparing = self.trials.get(TrialState.PREPARING) and not self.trials.get(TrialState.RUNNING)
        return (
            "PREPARING" if preparing and self.experiment.state is ExperimentState.ACTIVE else str(self.experiment.state)
        )

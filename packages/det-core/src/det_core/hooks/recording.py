"""What det-driver gives to a script that det did not start: a record of its run in the home.

det-core writes no store. The distribution that does so names a module of its own as the entry point
`recorder` of the group `det.driver`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from ..checkpoint.manifest import Manifest
    from ..config import ExperimentConfig
    from ..train.host import Outcome

ENTRY_POINT_GROUP = "det.driver"


@dataclass(frozen=True, kw_only=True)
class OutsideRun:
    """A run of a script that det did not start.

    - `home`: the store's directory.
    - `config`: its configuration, whose hyperparameters are constants.
    - `script`: the file of the script, if there is one.
    - `experiment`, `trial`: the identifiers by which a later run continues the same trial.
    - `offline`: whether it stays on this machine, although a server is chosen.
    """

    home: Path
    config: ExperimentConfig
    hparams: Mapping[str, Any]
    script: Path | None = None
    experiment: str | None = None
    trial: str | None = None
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Where a run is recorded, and from where its trial continues.

    `steps_completed` is the position of `latest_checkpoint`, which is None at the beginning. The
    numbers are 0 for a run that is not recorded.
    """

    experiment_id: int = 0
    trial_id: int = 0
    run_number: int = 0
    latest_checkpoint: str | None = None
    steps_completed: int = 0


class Recording(Protocol):
    """The record of one run. Its methods but `deleted` raise nothing, and do not wait for a disk.

    Only `checkpointed`, `deleted` and `finished` return when their record is written, or cannot be.
    """

    recorded: Recorded

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics of a group."""

    def checkpointed(self, manifest: Manifest, storage: str) -> None:
        """Record a checkpoint that is published."""

    def deleted(self, uuid: str) -> None:
        """Record that a checkpoint is deleted, before its files are.

        Raises DetError if a version of a model has it.
        """

    def progress(self, fraction: float) -> None:
        """Record how much of the training is done, 0 to 1."""

    def finished(self, outcome: Outcome, message: str, traceback: str) -> None:
        """Record how the run ended. Only the first call counts."""

    def close(self) -> None:
        """Write what is left, and release the experiment. A second call does nothing."""


class Recorder(Protocol):
    """The module that det-driver registers."""

    def record(self, run: OutsideRun) -> Recording | None:
        """Begin a record. None, after a warning, where the home cannot be written."""


def find_recorder() -> Recorder | None:
    """Return the module that det-driver registers, or None where that is not installed."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINT_GROUP, name="recorder"):
        return cast("Recorder", entry.load())
    return None

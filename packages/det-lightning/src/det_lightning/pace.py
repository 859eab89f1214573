"""What decides between the batches of a fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol

import lightning.pytorch as pl

from .position import Position


class Fit(Protocol):
    """What a pace asks of the fit that it decides for."""

    at: Position

    @property
    def trainer(self) -> pl.Trainer:
        """The trainer that fits."""

    def take_epoch_metrics(self) -> dict[str, Any]:
        """Return what was logged over epochs since this was last asked."""

    def save(self, directory: Path) -> None:
        """Write a checkpoint; every rank must ask for it, the chief writes."""


class Pace(ABC):
    """Decides, between two batches, what happens next."""

    @abstractmethod
    def begin(self, fit: Fit) -> bool:
        """Take notice that the trainer is set up and restored; return whether to stop at once."""

    @abstractmethod
    def step(self, fit: Fit, row: dict[str, Any]) -> bool:
        """Take the metrics of a batch that is over; return whether to stop."""

    @abstractmethod
    def request_stop(self) -> None:
        """Take notice that the module or a callback has set `trainer.should_stop`."""

    def is_last(self, done: int) -> bool:
        """Tell whether the trial is over for good behind `done` batches, as far as is known."""
        return False

    @property
    def leaves(self) -> bool:
        """Whether training has stopped for another run to go on with, which will call the hooks that end it."""
        return False

    def synchronize(self) -> None:
        """Make equal over the ranks what a validation reads."""

    def wrap(self, trainer: pl.Trainer) -> None:
        """Let plugins wrap the optimizers and schedulers that a trainer has made."""

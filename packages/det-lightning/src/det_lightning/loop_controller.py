"""The interface of what decides between the batches of a fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import lightning.pytorch as pl

from .position import Position


class Fit(Protocol):
    """The part of a fit that a pace uses."""

    at: Position

    @property
    def trainer(self) -> pl.Trainer:
        """The trainer of the fit."""

    def take_epoch_metrics(self) -> dict[str, Any]:
        """Return the values that were logged over epochs since the last call."""

    def call_hooks(self) -> None:
        """Call the hooks that end the epoch whose data has ended, unless they have been called."""

    def save(self, directory: Path) -> None:
        """Write a checkpoint. Every rank must call this. Only the chief writes."""


class LoopController(ABC):
    """Decides between two batches what happens next."""

    @abstractmethod
    def begin(self, fit: Fit) -> bool:
        """Called when the trainer is set up and restored. Returns whether to stop at once."""

    @abstractmethod
    def step(self, fit: Fit, row: dict[str, Any]) -> bool:
        """Called with the metrics of a batch that is over. Returns whether to stop."""

    @abstractmethod
    def request_stop(self) -> None:
        """Called when the module or a callback has set `trainer.should_stop`."""

    def is_last(self, done: int) -> bool:
        """Return whether the trial is complete after `done` batches, as far as is known."""
        return False

    @property
    def owes_validation(self) -> bool:
        """Whether a validation is due at the current position and not done yet."""
        return False

    @property
    def leaves(self) -> bool:
        """Whether training has stopped so that another run continues it.

        That run calls the hooks that end it.
        """
        return False

    def chiefs_buffers(self) -> AbstractContextManager[None]:
        """Return a context in which a validation reads the chief's buffers on every rank."""
        return nullcontext()

    def wrap(self, trainer: pl.Trainer) -> None:
        """Let plugins wrap the optimizers and schedulers that a trainer has made."""

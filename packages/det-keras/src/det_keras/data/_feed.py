"""The interface of all kinds of data for training and validation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from det_core import TrialError

ENDLESS = 2**62


class BatchError(TrialError):
    """A batch is malformed. Raised while training reads it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How data is read.

    `batch_size` is the number of records in a batch of one rank, or None without
    `global_batch_size`. `seed` determines the order. `rank` and `size` say which rank reads.
    `batches_per_epoch` is the configuration's value, for data that does not know its length.
    """

    batch_size: int | None
    seed: int
    shuffle: bool = True
    rank: int = 0
    size: int = 1
    workers: int = 1
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    validation_steps: int | None = None
    batches_per_epoch: int | None = None
    any_structure: bool = False


class Feed(ABC):
    """Data as batches that are identified by their number."""

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int | None:
        """Training batches of one rank in an epoch, or None if that is unknown."""

    @property
    def batch_size(self) -> int | None:
        """Records in a batch of one rank, or None if that is unknown."""
        return None

    @property
    def pipeline(self) -> Any:
        """The user's `tf.data` pipeline, or None."""
        return None

    @abstractmethod
    def training(self, first: int) -> Any:
        """Return an endless `tf.data.Dataset` of batches from batch `first` of the trial on."""

    @abstractmethod
    def validation(self) -> Any:
        """Return a finite `tf.data.Dataset` of this rank's batches, or None if it has none."""

    def failure(self) -> BaseException | None:
        """Return the error of the user's code that stopped the reading of data, or None."""
        return None

    def close(self) -> None:
        """Release threads and processes."""

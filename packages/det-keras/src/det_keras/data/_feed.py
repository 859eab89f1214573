"""What training and validation ask of data, whatever its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from det_core import TrialError

ENDLESS = 2**62


class BatchError(TrialError):
    """A batch is not what it should be; found while training reads it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How data is read: records in a batch of one rank, the seed of the order, and which of the ranks reads.

    `batch_size` is None where the trial has no `global_batch_size`. `batches_per_epoch` is what the configuration says,
    for data that does not know its length. `first` is the batch that a run begins with.
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
    """Data as batches, by their number."""

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int | None:
        """Training batches of one rank in an epoch, None where that is unknown."""

    @property
    def batch_size(self) -> int | None:
        """Records in a batch of one rank, None where that is unknown."""
        return None

    @abstractmethod
    def training(self, first: int) -> Any:
        """Return an endless `tf.data.Dataset` of batches that begins with batch `first` of the trial."""

    @abstractmethod
    def validation(self) -> Any:
        """Return a finite `tf.data.Dataset` of this rank's batches, None where it has none."""

    def failure(self) -> BaseException | None:
        """Return what stopped the reading of data in the user's own code, if anything did."""
        return None

    def close(self) -> None:
        """Release threads and processes."""

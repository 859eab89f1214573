"""The verb that det-keras needs beside those of every backend: reducing gradients, inside of a compiled step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import tensorflow as tf

from det_core import Backend, Communicator
from det_core.backend import RankLost

if TYPE_CHECKING:
    from det_core.config import Optimizations


class KerasBackend(Backend):
    """A backend that averages dense tensors over the ranks, as an operation of TensorFlow's graphs."""

    compress = False

    @classmethod
    @abstractmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        """Return the backend of ranks that have met over `control`; `optimizations` are those of the configuration."""

    @abstractmethod
    def sum(self, tensors: list[Any]) -> list[Any]:
        """Return the sums of tensors over the ranks; all are reduced in one go. Every rank makes the same calls in one order."""

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the means of gradients over the ranks; with `compress` those of 32 bits travel as 16."""
        parts = [tf.convert_to_tensor(tensor) / tf.cast(self.ranks.size, tensor.dtype) for tensor in tensors]
        sent = [tf.cast(part, tf.float16) if self.compress and part.dtype == tf.float32 else part for part in parts]
        return [tf.cast(total, part.dtype) for total, part in zip(self.sum(sent), parts, strict=True)]


def lost(error: Exception, rank: int, size: int) -> Exception:
    """Return what a failed exchange means: another rank is gone, or something else, which is the error itself."""
    text = str(error)
    if not any(sign in text for sign in _SIGNS):
        return error
    other = 1 - rank if size == 2 else -1
    who = f"rank {other}" if other >= 0 else "another rank"
    return RankLost(other, f"{who} is gone, as rank {rank} found while gradients were exchanged; see its output")


_SIGNS = (
    "Collective ops is aborted",
    "Horovod has been shut down",
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "failed to connect to all addresses",
    "Socket closed",
    "timed out",
    "Timed out waiting",
)

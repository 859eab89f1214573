"""The verbs that det-torch needs beside those of every backend: two of them, on tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import torch

from det_core import Backend, Communicator
from det_core.backend import RankLost

if TYPE_CHECKING:
    from det_core.config import Optimizations

_CHUNK = 1 << 28  # bytes that are copied, and sent, in one go


class TorchBackend(Backend):
    """A backend that sums and sends tensors, in place, on whichever device they are."""

    @classmethod
    @abstractmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        """Return the backend of ranks that have met over `control`; `optimizations` are those of the configuration."""

    @abstractmethod
    def start_sum(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        """Begin to sum a contiguous tensor over the ranks; call what is returned before it is read.

        Every rank begins the same sums in the same order; `name` tells those apart that are under way at once.
        """

    @abstractmethod
    def send(self, data: torch.Tensor) -> None:
        """Replace bytes (a flat tensor of uint8) by those of the chief, on every rank."""

    def carries(self, dtype: torch.dtype) -> bool:
        """Tell whether tensors of a type can be summed; those of others travel as float32."""
        return True

    def spread(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every rank the chief's values. Shapes and types must be the same on all ranks."""
        for device in dict.fromkeys(tensor.device for tensor in tensors):
            for some in _chunks([tensor for tensor in tensors if tensor.device == device]):
                self._spread(some)

    def _spread(self, tensors: list[torch.Tensor]) -> None:
        pieces = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        data = torch.cat(pieces)
        self.send(data)
        if self.ranks.rank == 0:
            return
        parts = torch.split(data, [piece.numel() for piece in pieces])
        for tensor, theirs in zip(tensors, parts, strict=True):
            # cloned, as bytes in the middle of others need not lie where numbers of this type may
            values = theirs.clone().view(tensor.dtype).view(tensor.shape)
            tensor.data.copy_(values)  # a backward pass under way must not take it for a change of its inputs


def _chunks(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    chunk: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        chunk.append(tensor)
        size += tensor.numel() * tensor.element_size()
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def lost(error: Exception, rank: int, size: int) -> Exception:
    """Return what a failed exchange means: another rank is gone, or something else, which is the error itself."""
    text = str(error)
    if not any(sign in text for sign in _SIGNS):
        return error
    other = 1 - rank if size == 2 else -1
    who = f"rank {other}" if other >= 0 else "another rank"
    return RankLost(
        other, f"{who} is gone, as rank {rank} found while tensors were exchanged; see its output ({_line(text)})"
    )


_SIGNS = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Connection refused",
    "Timed out waiting",
    "timed out",
    "has been shut down",
    "NCCL communicator was aborted",
    "remote process exited",
)


def _line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:200]

"""The base of all backends of det-torch.

It adds operations on tensors to those of det-core's `Backend`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch

from det_core import Backend

# Bytes that are copied and sent at a time.
_CHUNK = 1 << 28


class TorchBackend(Backend):
    """Sums and broadcasts tensors in place, on the device that holds them."""

    @abstractmethod
    def start_sum(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        """Start to sum a contiguous tensor over the ranks.

        Call the returned function before the result is read.

        Every rank must start the same sums in the same order. `name` distinguishes sums that are in
        progress at the same time.
        """

    @abstractmethod
    def send(self, data: torch.Tensor) -> None:
        """Replace the data on every rank by the chief's. `data` is a flat tensor of uint8."""

    def carries(self, dtype: torch.dtype) -> bool:
        """Return whether tensors of a type can be summed. Other types are sent as float32."""
        return True

    def spread(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the chief's values to every rank. Shapes and types must be the same on all ranks."""
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
            # The clone is aligned for this type. A slice of the received bytes may not be.
            values = theirs.clone().view(tensor.dtype).view(tensor.shape)
            # `.data` hides the write from autograd, which may be in a backward pass.
            tensor.data.copy_(values)


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

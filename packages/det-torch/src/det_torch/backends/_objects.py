"""A backend that sends tensors as Python objects over det's own connections.

It is slow and meant for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch

from det_core import Communicator, DistributedContext

from ._base import TorchBackend

if TYPE_CHECKING:
    from det_core.config import Optimizations


class Objects(TorchBackend):
    """The backend of ranks that have chosen no other."""

    def __init__(self, control: Communicator | None = None) -> None:
        self._control = control or DistributedContext()
        self.ranks = self._control.ranks

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        return cls(control)

    def init(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def barrier(self) -> None:
        self._control.barrier()

    def allgather(self, value: Any) -> list[Any]:
        return self._control.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._control.broadcast(value)

    def start_sum(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        everyone = self._control.allgather(tensor.cpu())
        tensor.copy_(torch.stack(everyone).sum(dim=0))
        return lambda: None

    def send(self, data: torch.Tensor) -> None:
        data.copy_(self._control.broadcast(data.cpu()))

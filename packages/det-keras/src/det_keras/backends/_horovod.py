"""Connects the ranks of a trial over Horovod, with Keras 3 and Keras 2.

Horovod's own integration accepts a Keras 3 optimizer but exchanges nothing. So det's own wrapper
calls Horovod's operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from det_core import Communicator
from det_horovod import Begun

from ._base import KerasBackend

if TYPE_CHECKING:
    from det_core.config import Optimizations


class HorovodBackend(Begun, KerasBackend):
    """Horovod's global process set."""

    module = "horovod.tensorflow"

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        backend = super().join(control, optimizations)
        backend.compress = optimizations is not None and optimizations.gradient_compression
        return backend

    def sum(self, tensors: list[Any]) -> list[Any]:
        return list(self._hvd.grouped_allreduce(tensors, op=self._hvd.Sum))

    def concat(self, tensors: list[Any]) -> list[Any]:
        return [self._hvd.allgather(tensor) for tensor in tensors]

"""The ranks of a trial over Horovod."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from det_core import DetError, DistributedContext, Ranks
from det_core.horovod import Meeting, meet, settings

from ._base import TorchBackend, lost

if TYPE_CHECKING:
    from det_core.config import Optimizations

_SUMMED = {
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
}
_OBJECTS = "det.objects"  # Horovod would name them by their types, and wait for ranks that have another one


class HorovodBackend(TorchBackend):
    """Horovod's global process set.

    Horovod is begun once in a process, by the script or here, and lasts until the process ends: 0.28.1 may crash where it is
    begun a second time.
    """

    def __init__(self) -> None:
        self._meeting: Meeting | None = None
        self._open = False

    @classmethod
    def join(cls, control: DistributedContext, optimizations: Optimizations | None = None) -> Self:
        import horovod.torch as hvd

        backend = cls()
        backend.chief_ip = control.chief_ip
        if not hvd.is_initialized():
            backend._meeting = meet(control, settings(optimizations) if optimizations is not None else None)
        elif hvd.size() != control.size:
            raise DetError(
                f"Horovod runs with {hvd.size()} ranks in this process, but the run has {control.size}; begin it anew in a "
                "process of its own"
            )
        return backend

    def init(self) -> None:
        if self._open:
            return
        import horovod.torch as hvd

        self._hvd: Any = hvd
        if not hvd.is_initialized():
            hvd.init()
        self.ranks = Ranks(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
        )
        self._open = True

    def shutdown(self) -> None:
        self._open = False
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None

    def barrier(self) -> None:
        self._call(self._hvd.barrier)

    def allgather(self, value: Any) -> list[Any]:
        values: list[Any] = self._call(self._hvd.allgather_object, value, name=_OBJECTS)
        values[self.ranks.rank] = value
        return values

    def broadcast(self, value: Any) -> Any:
        theirs = self._call(self._hvd.broadcast_object, value, root_rank=0, name=_OBJECTS)
        return value if self.ranks.rank == 0 else theirs

    def start_sum(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        handle = self._call(self._hvd.allreduce_async_, tensor, name=name, op=self._hvd.Sum)
        return partial(self._call, self._hvd.synchronize, handle)

    def send(self, data: torch.Tensor) -> None:
        self._call(self._hvd.broadcast_, data, root_rank=0, name="det.send")

    def carries(self, dtype: torch.dtype) -> bool:
        return dtype in _SUMMED

    def _call(self, verb: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return verb(*arguments, **options)
        except RuntimeError as error:  # HorovodInternalError is one
            raise lost(error, self.ranks.rank, self.ranks.size) from error

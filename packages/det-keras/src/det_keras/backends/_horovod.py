"""The ranks of a trial over Horovod, under Keras 3 as under Keras 2.

Horovod's own integration accepts an optimizer of Keras 3 and exchanges nothing; here its operations are called, by our own wrapper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from det_core import DetError, DistributedContext, Ranks
from det_core.horovod import Meeting, meet, settings

from ._base import KerasBackend

if TYPE_CHECKING:
    from det_core.config import Optimizations

_NAMES = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


class HorovodBackend(KerasBackend):
    """Horovod's global process set.

    Horovod is begun once in a process, by the script or here, and lasts until the process ends: 0.28.1 may crash where it is
    begun a second time.
    """

    def __init__(self) -> None:
        self._meeting: Meeting | None = None
        self._open = False

    @classmethod
    def join(cls, control: DistributedContext, optimizations: Optimizations | None = None) -> Self:
        import horovod.tensorflow as hvd

        backend = cls()
        backend.chief_ip = control.chief_ip
        backend.compress = optimizations is not None and optimizations.gradient_compression
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
        import horovod.tensorflow as hvd

        self._hvd: Any = hvd
        if not hvd.is_initialized():
            hvd.init()
        self.ranks = Ranks(**{name: getattr(hvd, name)() for name in _NAMES})
        self._open = True

    def shutdown(self) -> None:
        self._open = False
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None

    def barrier(self) -> None:
        self.allgather(None)

    def allgather(self, value: Any) -> list[Any]:
        values: list[Any] = self._hvd.allgather_object(value)
        values[self.ranks.rank] = value
        return values

    def broadcast(self, value: Any) -> Any:
        theirs = self._hvd.broadcast_object(value, root_rank=0)
        return value if self.ranks.rank == 0 else theirs

    def sum(self, tensors: list[Any]) -> list[Any]:
        return list(self._hvd.grouped_allreduce(tensors, op=self._hvd.Sum))

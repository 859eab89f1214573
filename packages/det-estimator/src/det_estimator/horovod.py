"""The ranks of an estimator over Horovod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import tensorflow as tf

from det_core import Backend, DetError, DistributedContext, Ranks
from det_core.horovod import Meeting, meet, settings

if TYPE_CHECKING:
    from det_core.config import Optimizations


class HorovodBackend(Backend):
    """Horovod's global process set.

    Horovod is begun once in a process, by a script or here, and lasts until the process ends: 0.28.1 may crash where it is
    begun a second time.
    """

    def __init__(self) -> None:
        self._meeting: Meeting | None = None
        self._open = False

    @classmethod
    def join(cls, control: DistributedContext, optimizations: Optimizations | None = None) -> Self:
        import horovod.tensorflow as hvd

        backend = cls()
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
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        self.ranks = Ranks(**{name: getattr(hvd, name)() for name in names})
        self._open = True

    def shutdown(self) -> None:
        self._open = False
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None

    def barrier(self) -> None:
        self._hvd.allgather_object(None)

    def allgather(self, value: Any) -> list[Any]:
        values: list[Any] = self._hvd.allgather_object(value)
        values[self.ranks.rank] = value
        return values

    def broadcast(self, value: Any) -> Any:
        theirs = self._hvd.broadcast_object(value, root_rank=0)
        return value if self.ranks.rank == 0 else theirs

    # In the graph

    def reducer(self, optimizations: Optimizations) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a function that adds to the graph the means of gradients over the ranks, in one grouped allreduce."""
        hvd = self._hvd
        compression = hvd.Compression.fp16 if optimizations.gradient_compression else hvd.Compression.none

        def reduce(gradients: Sequence[Any]) -> list[Any]:
            found: list[Any] = hvd.grouped_allreduce(list(gradients), op=hvd.Average, compression=compression)
            return found

        return reduce

    def broadcast_variables(self, variables: Sequence[Any]) -> Any:
        """Return an op that gives every rank the chief's values."""
        sent = [variable for variable in variables if variable.dtype.base_dtype != tf.string]
        return tf.group(*(variable.assign(self._hvd.broadcast(variable, 0)) for variable in sent))

"""What the Horovod backends of all frameworks have in common."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar, Self

from det_core.backend import Backend, Ranks
from det_core.errors import DetError

from ._meet import Meeting, meet
from ._settings import settings

if TYPE_CHECKING:
    from det_core.backend import Communicator
    from det_core.config import Optimizations

_NAMES = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


class Begun(Backend):
    """Horovod's global process set, with its collectives of objects; derive from it, and name Horovod's `module`.

    Horovod is begun once in a process, by the script or here, and lasts until the process ends: 0.28.1 may crash where it is
    begun a second time.
    """

    module: ClassVar[str]

    def __init__(self) -> None:
        self._meeting: Meeting | None = None
        self._open = False

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        """Return the backend of ranks that have met over `control`; `optimizations` are those of the configuration."""
        hvd, backend = importlib.import_module(cls.module), cls()
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
        self._hvd: Any = importlib.import_module(self.module)
        if not self._hvd.is_initialized():
            self._hvd.init()
        self.ranks = Ranks(**{name: getattr(self._hvd, name)() for name in _NAMES})
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

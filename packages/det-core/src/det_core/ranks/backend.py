"""How the ranks of one run communicate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ..config import Optimizations


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The rank of one process and the sizes of the groups that it is in.

    `local_*` count the processes on one host, `cross_*` the hosts.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1


START_SECONDS = 120.0
"""Within how many seconds the ranks of a run meet, unless somebody says otherwise."""
CALL_SECONDS = 1800.0
"""How many seconds apart they may come to a collective, unless somebody says otherwise."""
RANK_VARIABLES = {field.name: f"DET_{field.name.upper()}" for field in fields(Ranks)}


def rank_variables(ranks: Ranks) -> dict[str, str]:
    """Return the environment variables that give a process its ranks."""
    return {variable: str(getattr(ranks, name)) for name, variable in RANK_VARIABLES.items()}


def ranks_in(environ: Mapping[str, str]) -> Ranks:
    """Read the ranks of a process from its environment.

    Without the variables it is a single process.
    """
    return Ranks(**{name: int(environ[v]) for name, v in RANK_VARIABLES.items() if v in environ})


class RankLost(ConnectionError):
    """Another rank of the run is gone, or did not come in time. `rank` is its number."""

    def __init__(self, rank: int, message: str) -> None:
        self.rank = rank
        super().__init__(message)


class Backend(ABC):
    """The communication that core and adapters need.

    Every rank makes the same calls in the same order.

    The `_local` methods are among the ranks of one host. Every rank of the run must call them,
    unless a backend says that the ranks of one host are enough.

    Without arguments a backend finds its ranks in the variables that its own launcher sets. `join`
    is for ranks that det started.
    """

    ranks: Ranks
    chief_ip: str = "127.0.0.1"
    """The address of rank 0's host, as this process reaches it, if the backend knows it."""
    timeout: float | None = None

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        """Return the backend of ranks that det started and that are connected through `control`.

        Every rank calls it, and then `init`. What the ranks need to connect again, such as a port
        that rank 0 opened, is sent through `control`, which the caller still owns. `optimizations`
        are those of the configuration.
        """
        return cls()

    @abstractmethod
    def init(self) -> None:
        """Connect to the other ranks. `ranks` is known afterwards. A second call does nothing."""

    @abstractmethod
    def shutdown(self) -> None:
        """Disconnect from the other ranks. A second call does nothing."""

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.allgather(None)

    @abstractmethod
    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks."""

    @abstractmethod
    def broadcast(self, value: Any) -> Any:
        """Return the chief's value on every rank."""

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value on the chief, None elsewhere."""
        values = self.allgather(value)
        return values if self.ranks.rank == 0 else None

    def agree(self, flag: bool) -> bool:
        """Return whether any rank's flag is set, the same on every rank."""
        return any(self.allgather(flag))

    def allgather_local(self, value: Any) -> list[Any]:
        """Return the value of every rank on this host, in the order of local ranks."""
        gathered = self.allgather((self.ranks.cross_rank, self.ranks.local_rank, value))
        here = [
            (local, theirs) for cross, local, theirs in gathered if cross == self.ranks.cross_rank
        ]
        return [theirs for _, theirs in sorted(here, key=lambda pair: pair[0])]

    def gather_local(self, value: Any) -> list[Any] | None:
        """Return the value of every rank on this host on the host's chief, None elsewhere."""
        values = self.allgather_local(value)
        return values if self.ranks.local_rank == 0 else None

    def broadcast_local(self, value: Any) -> Any:
        """Return the value of the host's chief on every rank of the host."""
        return self.allgather_local(value if self.ranks.local_rank == 0 else None)[0]


@dataclass(frozen=True, kw_only=True)
class BackendRecord:
    """One way for the ranks of a framework to communicate. `available` is called before `load`.

    `framework` is the framework that it serves, or None if it serves any. `backend: auto` takes the
    available one with the highest `priority`.
    """

    name: str
    load: Callable[[], type[Backend]]
    framework: str | None = None
    available: Callable[[], bool] = lambda: True
    priority: int = 0


def available_by(module: str, *arguments: Any) -> Callable[[], bool]:
    """Return a function that calls `available(*arguments)` of a module.

    False if it is not installed.
    """
    return lambda: (
        find_spec(module) is not None and bool(import_module(module).available(*arguments))
    )


class Serial(Backend):
    """The backend of a run with one process. Every method returns at once."""

    ranks = Ranks()

    def init(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value


class Communicator:
    """Rank, size and collectives of a run, the same for every backend and any number of processes.

    Every rank must call the same collectives in the same order, from one thread at a time. If a
    rank is gone or late, the others raise RankLost, which names it. Values are pickled. A rank gets
    its own value back without a copy. The `_local` methods are among the ranks of one host.
    `chief_ip` is the address of rank 0's host, as this process reaches it. `timeout` is how many
    seconds a rank waits for the others, or None if it is not set.
    """

    def __init__(self, backend: Backend) -> None:
        backend.init()
        self._backend, ranks = backend, backend.ranks
        self.chief_ip, self.timeout = backend.chief_ip, backend.timeout
        self.rank, self.size = ranks.rank, ranks.size
        self.local_rank, self.local_size = ranks.local_rank, ranks.local_size
        self.cross_rank, self.cross_size = ranks.cross_rank, ranks.cross_size

    # Where this process stands

    def get_rank(self) -> int:
        """Return the number of this process in the run. 0 is the chief."""
        return self.rank

    def get_size(self) -> int:
        """Return how many processes the run has."""
        return self.size

    def get_local_rank(self) -> int:
        """Return the number of this process on its host."""
        return self.local_rank

    def get_num_agents(self) -> int:
        """Return the number of hosts of the run."""
        return self.cross_size

    @property
    def ranks(self) -> Ranks:
        """All six numbers together."""
        return self._backend.ranks

    # Collectives

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value on the chief, None elsewhere."""
        return self._backend.gather(value)

    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks, on every rank."""
        return self._backend.allgather(value)

    def broadcast(self, value: Any) -> Any:
        """Return the chief's value on every rank."""
        return self._backend.broadcast(value)

    def gather_local(self, value: Any) -> list[Any] | None:
        """Return the value of every rank on this host on the host's chief, None elsewhere."""
        return self._backend.gather_local(value)

    def allgather_local(self, value: Any) -> list[Any]:
        """Return the values of the ranks on this host, in order of local rank, on each of them."""
        return self._backend.allgather_local(value)

    def broadcast_local(self, value: Any) -> Any:
        """Return the value of the host's chief on every rank of the host."""
        return self._backend.broadcast_local(value)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._backend.barrier()

    def agree(self, flag: bool) -> bool:
        """Return whether any rank's flag is set, the same on every rank."""
        return self._backend.agree(flag)

    # The end

    def close(self) -> None:
        """Disconnect from the other ranks. A second call does nothing."""
        self._backend.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

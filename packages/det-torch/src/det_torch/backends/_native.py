"""The backend that exchanges tensors over `torch.distributed`: Gloo between CPUs, NCCL between
GPUs.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist

# Imported before a group is made: the defaults of its functions keep the process group that exists
# at import. If that were a group of det, it could not end its threads, and a tensor that it freed
# while Python exits would abort the process.
import torch.distributed.nn.functional

# Its `__all__` does not list them.
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]

from det_core import Communicator, DetError, Ranks
from det_core.ranks.distributed import launched
from det_core.ranks.network import address_to_bind, interface_towards
from det_core.train.ranks import lost

from ._base import TorchBackend

if TYPE_CHECKING:
    from det_core.config import Optimizations

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "lo"


class Native(TorchBackend):
    """Uses the default process group.

    If the script has made one already, this class uses it and does not destroy it.

    Objects travel over det's own connections if det started the ranks, and otherwise over the
    process group.
    """

    def __init__(self) -> None:
        self._control: Communicator | None = None
        self._launched: Communicator | None = None
        self._begin: Callable[[], Ranks] = _from_environment
        self._owned = self._open = False
        self._folder: Path | None = None

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        backend = cls()
        if not dist.is_initialized():
            backend._begin = partial(backend._meet, control)
        else:
            backend._begin = lambda: control.ranks
        backend._control, backend.chief_ip = control, control.chief_ip
        return backend

    def init(self) -> None:
        if self._open:
            return
        self._owned = not dist.is_initialized()
        self.ranks = self._begin()
        if self._control is None:
            self._control = self._launched = launched()
        self._open = True

    def shutdown(self) -> None:
        if self._open and self._owned and dist.is_initialized():
            dist.destroy_process_group()
            self._left()
        if self._launched is not None:
            self._launched.close()
        self._open = False

    def barrier(self) -> None:
        self.allgather(None)

    def allgather(self, value: Any) -> list[Any]:
        if self._control is not None:
            return self._control.allgather(value)
        values: list[Any] = [None] * self.ranks.size
        self._call(dist.all_gather_object, values, value)
        values[self.ranks.rank] = value
        return values

    def broadcast(self, value: Any) -> Any:
        if self._control is not None:
            return self._control.broadcast(value)
        holder = [value]
        self._call(dist.broadcast_object_list, holder, src=0)
        return value if self.ranks.rank == 0 else holder[0]

    def start_sum(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        work = self._call(dist.all_reduce, tensor, async_op=True)
        return partial(self._call, work.wait)

    def send(self, data: torch.Tensor) -> None:
        self._call(dist.broadcast, data, src=0)

    def _call(self, verb: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return verb(*arguments, **options)
        except RuntimeError as error:
            raise lost(
                error, self.ranks.rank, self.ranks.size, "while tensors were exchanged"
            ) from error

    # Connecting the ranks

    def _meet(self, control: Communicator) -> Ranks:
        ranks = control.ranks
        with _gloo_towards(control):
            if ranks.cross_size == 1:
                store: Store = self._in_a_file(control)
            else:
                store = _at_a_port(control)
            dist.init_process_group(
                _collectives(),
                store=store,
                rank=ranks.rank,
                world_size=ranks.size,
                timeout=_timeout(control.timeout),
            )
        return ranks

    def _in_a_file(self, control: Communicator) -> Store:
        """Return a store in a file that only this user can read, so that no port is opened.

        `_left` deletes the file. torch does not delete it if two stores are closed at the same
        time, as each sees the other as open.
        """
        folder = ""
        if control.rank == 0:
            # The scratch directory is deleted with the run, even if this process is killed.
            place = os.environ.get("DET_SCRATCH_DIR")
            if place:
                os.makedirs(place, exist_ok=True)
            folder = tempfile.mkdtemp(prefix="det-ranks-", dir=place)
        self._folder = Path(control.broadcast(folder))
        return FileStore(str(self._folder / "store"))

    def _left(self) -> None:
        """Delete the store's file after every rank has left it.

        A store whose file is missing waits for it for minutes.
        """
        folder, self._folder = self._folder, None
        if folder is None:
            return
        # Another rank may delete it at the same time.
        with suppress(OSError):
            (folder / str(self.ranks.rank)).touch()
            if all((folder / str(rank)).exists() for rank in range(self.ranks.size)):
                for name in ("store", *map(str, range(self.ranks.size))):
                    (folder / name).unlink(missing_ok=True)
                folder.rmdir()


def _at_a_port(control: Communicator) -> Store:
    """Return a store at a port that rank 0 opens on the address of its host."""
    if control.rank:
        return TCPStore(control.chief_ip, control.broadcast(None), control.size, is_master=False)
    address = address_to_bind(control.chief_ip)
    listening = socket.create_server((address, 0), family=_family(address))
    port = listening.getsockname()[1]
    store = TCPStore(
        control.chief_ip,
        port,
        control.size,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
        use_libuv=True,
    )
    control.broadcast(port)
    return store


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _timeout(seconds: float | str | None) -> timedelta | None:
    return timedelta(seconds=float(seconds)) if seconds else None


def _collectives() -> str:
    return (
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    )


def _from_environment() -> Ranks:
    """Join the process group that the variables of `torchrun` describe, and return this process's
    ranks.

    `RANK` and the like are read here because det did not launch the script.
    """
    environ = os.environ
    if not dist.is_initialized():
        missing = [name for name in _VARIABLES if name not in environ]
        if missing:
            raise DetError(
                f"{missing[0]} is not set; start the script with torchrun, or with: det launch"
                " torch -- CMD"
            )
        dist.init_process_group(
            _collectives(), init_method="env://", timeout=_timeout(environ.get("DET_RANKS_TIMEOUT"))
        )
    rank, size = dist.get_rank(), dist.get_world_size()
    local_size = int(environ.get("LOCAL_WORLD_SIZE", size))
    return Ranks(
        rank=rank,
        size=size,
        local_rank=int(environ.get("LOCAL_RANK", rank % local_size)),
        local_size=local_size,
        cross_rank=int(environ.get("GROUP_RANK", rank // local_size)),
        cross_size=int(environ.get("GROUP_WORLD_SIZE", -(-size // local_size))),
    )


@contextmanager
def _gloo_towards(control: Communicator) -> Iterator[None]:
    """Make Gloo listen on the network interface that reaches the other ranks.

    By default Gloo takes the address to which the host's name resolves, which the other ranks may
    not reach.
    """
    name = LOOPBACK if control.cross_size == 1 else interface_towards(control.chief_ip)
    if name is None or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = name
    try:
        yield
    finally:
        del os.environ[_INTERFACE]

"""The processes of one run, as trials and scripts see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from .backend import RANK_VARIABLES, Backend, Communicator, Ranks, Serial
from .errors import PluginError

LOOPBACK = "127.0.0.1"
PORT = 12360
_HINTS = {
    "horovod": "pip install 'det-torch[horovod]' (or det-keras), then: det horovod install",
    "torch": "pip install det-torch",
    "tensorflow": "pip install det-keras",
}


class DistributedContext(Communicator):
    """The ranks of a run, as a script makes it; those of a trial are given.

    Give all six numbers, or none for a single process. Several ranks meet at `chief_ip`, the address of rank 0's host (on one
    host loopback by default), on the port `pub_port + port_offset`, and prove to one another that they hold `key`: random
    bytes, 16 or more, or their hex digits, the same on every rank. They must come within `start_timeout` seconds, and to each
    collective within `timeout` seconds of one another; by default those of `det_core.backends.Socket`. `pull_port` and
    `force_tcp` are taken for the sake of code written for Determined, and change nothing: one port, always TCP.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        size: int | None = None,
        local_rank: int | None = None,
        local_size: int | None = None,
        cross_rank: int | None = None,
        cross_size: int | None = None,
        chief_ip: str | None = None,
        pub_port: int = PORT,
        pull_port: int = 12376,
        port_offset: int = 0,
        force_tcp: bool = False,
        key: bytes | str | None = None,
        start_timeout: float | None = None,
        timeout: float | None = None,
    ) -> None:
        numbers = (rank, size, local_rank, local_size, cross_rank, cross_size)
        ranks = _ranks(dict(zip(RANK_VARIABLES, numbers, strict=True)))
        if ranks.size == 1:
            super().__init__(Serial())
            return
        if ranks.local_size != ranks.size and chief_ip is None:
            raise ValueError(
                f"chief_ip is not given for {ranks.size} ranks on {ranks.cross_size} hosts; give the address of rank 0's host"
            )
        from .backends.socket import CALL_SECONDS, START_SECONDS, Socket

        super().__init__(
            Socket(
                ranks,
                chief=(chief_ip or LOOPBACK, pub_port + port_offset),
                key=_key(key, ranks.size),
                start_timeout=START_SECONDS if start_timeout is None else start_timeout,
                timeout=CALL_SECONDS if timeout is None else timeout,
            )
        )

    # Other ways to make one

    @classmethod
    def from_backend(cls, backend: Backend) -> Self:
        """Return the context of a backend, whose ranks meet here if they have not yet; it is shut down on close."""
        context = cls.__new__(cls)
        Communicator.__init__(context, backend)
        return context

    @classmethod
    def from_horovod(cls, hvd: Any = None, chief_ip: str | None = None) -> Self:
        """Return the context of processes that Horovod started.

        `hvd` is the module that the script uses, such as `horovod.torch`; where several plugins know Horovod, its name
        decides. `chief_ip` is not needed, as the objects travel over Horovod. Raises PluginError where no plugin does.
        """
        return cls.from_backend(_registered("horovod", getattr(hvd, "__name__", "")))

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> Self:
        """Return the context of processes that `torchrun`, or another launcher with its variables, started.

        `chief_ip` is not needed, as the objects travel over `torch.distributed`. Raises PluginError without det-torch.
        """
        return cls.from_backend(_registered("torch"))

    @classmethod
    def from_socket(cls, timeout: float | None = None) -> Self:
        """Return the context of processes that `det launch socket` started; it needs no framework.

        The ranks come to each collective within `timeout` seconds of one another; by default the run's `distributed.timeout`,
        else 1800. Raises DetError where they were started otherwise.
        """
        from .backends.socket import Socket

        return cls.from_backend(Socket(timeout=timeout))

    @classmethod
    def from_tf_config(cls) -> tuple[Self, Any]:
        """Return the context of processes that `TF_CONFIG` describes, and the `tf.distribute` strategy that goes with it.

        Raises PluginError without det-keras.
        """
        backend = _registered("tensorflow")
        context = cls.from_backend(backend)
        strategy = getattr(backend, "strategy", None)
        if strategy is None:
            raise PluginError(f"the backend {type(backend).__name__} has no strategy; upgrade det-keras")
        return context, strategy


def _ranks(numbers: Mapping[str, int | None]) -> Ranks:
    given = {name: number for name, number in numbers.items() if number is not None}
    if not given:
        return Ranks()
    missing = [name for name in numbers if name not in given]
    if missing:
        raise ValueError(f"{', '.join(given)} given, but not {', '.join(missing)}; give all six numbers or none")
    for prefix in ("", "local_", "cross_"):
        rank, size = given[f"{prefix}rank"], given[f"{prefix}size"]
        if size < 1:
            raise ValueError(f"{prefix}size is {size}; give 1 or more")
        if not 0 <= rank < size:
            raise ValueError(f"{prefix}rank is {rank}; give a number from 0 to {size - 1}, as {prefix}size is {size}")
    for name in ("local_size", "cross_size"):
        if given[name] > given["size"]:
            raise ValueError(f"{name} is {given[name]}; give at most size, which is {given['size']}")
    return Ranks(**given)


def _key(key: bytes | str | None, size: int) -> bytes:
    if key is None:
        raise ValueError(
            f"key is not given for {size} ranks; give the same 16 random bytes or more, or their hex digits, on every rank, "
            "or let det start the ranks"
        )
    if isinstance(key, bytes):
        return key
    try:
        return bytes.fromhex(key)
    except ValueError:
        raise ValueError(
            f"key has {len(key)} characters that are not all hex digits; give bytes or hex digits"
        ) from None


def _registered(name: str, module: str = "") -> Backend:
    """Return the backend `name` of the plugin that knows it best: of the framework in the module's name, else the first."""
    from .plugins import Plugins

    known = Plugins.installed().backends()
    found = [record for record in known if record.name == name]
    if not found:
        names = ", ".join(sorted({record.name for record in known}))
        raise PluginError(f"no plugin registers the backend {name!r}; installed: {names}. Try: {_HINTS[name]}")
    ready = [record for record in found if record.available()]
    if not ready:
        raise PluginError(f"the backend {name!r} is not available here. Try: {_HINTS[name]}")
    words = module.split(".")
    return max(ready, key=lambda record: (record.framework in words, record.priority)).load()()

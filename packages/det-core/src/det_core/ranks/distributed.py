"""The processes of one run, as trials and scripts see them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from ..errors import PluginError
from ..hooks.runtime import runtime
from ..support.installation import how_to_install
from .backend import (
    CALL_SECONDS,
    RANK_VARIABLES,
    START_SECONDS,
    Backend,
    Communicator,
    Ranks,
    Serial,
)

LOOPBACK = "127.0.0.1"
PORT = 12360
_BRINGS = {"horovod": "det-horovod", "torch": "det-torch", "tensorflow": "det-keras"}
"""The distributions that register the backends of scripts."""


class DistributedContext(Communicator):
    """The ranks of a run, as a script creates it. A trial gets its own from det.

    Give all six numbers, or none for a single process. Several ranks connect to `chief_ip`, the
    address of rank 0's host, on the port `pub_port + port_offset`. On one host the address is
    loopback by default. They prove to one another that they hold `key`: 16 or more random bytes, or
    their hex digits, the same on every rank.

    They must connect within `start_timeout` seconds (by default 120), and come to each collective
    within `timeout` seconds of one another (by default 1800). `pull_port` and `force_tcp` are
    accepted for code written for Determined and change nothing: there is one port, and it is always
    TCP.
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
                f"chief_ip is not given for {ranks.size} ranks on {ranks.cross_size} hosts; give"
                " the address of rank 0's host"
            )
        super().__init__(
            runtime().Socket(
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
        """Return the context of a backend and connect its ranks if they are not connected yet.

        `close` shuts the backend down.
        """
        context = cls.__new__(cls)
        Communicator.__init__(context, backend)
        return context

    @classmethod
    def from_horovod(cls, hvd: Any = None, chief_ip: str | None = None) -> Self:
        """Return the context of processes that Horovod started.

        `hvd` is the module that the script uses, such as `horovod.torch`. Where several plugins
        know Horovod, its name decides. `chief_ip` is not needed, as the objects travel over
        Horovod. Raises PluginError where no plugin does.
        """
        return cls.from_backend(_registered("horovod", getattr(hvd, "__name__", "")))

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> Self:
        """Return the context of processes that `torchrun` started.

        Another launcher that sets its variables will do as well. `chief_ip` is not needed, as the
        objects travel over `torch.distributed`. Raises PluginError without det-torch.
        """
        return cls.from_backend(_registered("torch"))

    @classmethod
    def from_socket(cls, timeout: float | None = None) -> Self:
        """Return the context of processes that `det launch socket` started. It needs no framework.

        The ranks must come to each collective within `timeout` seconds of one another. The default
        is the run's `distributed.timeout`, else 1800. Raises DetError if they were started
        otherwise.
        """
        return cls.from_backend(runtime().Socket(timeout=timeout))

    @classmethod
    def from_tf_config(cls) -> tuple[Self, Any]:
        """Return the context of processes that `TF_CONFIG` describes, and their strategy.

        The strategy is one of `tf.distribute`. Raises PluginError without det-keras.
        """
        backend = _registered("tensorflow")
        context = cls.from_backend(backend)
        strategy = getattr(backend, "strategy", None)
        if strategy is None:
            raise PluginError(
                f"the backend {type(backend).__name__} has no strategy; upgrade det-keras"
            )
        return context, strategy


def launched() -> Communicator | None:
    """Return the connections of the ranks that `det launch` started, whatever their framework.

    Returns None where another launcher started them. Every rank calls it.
    """
    several = int(os.environ.get("DET_SIZE") or 1) > 1
    return Communicator(runtime().Socket()) if several and "DET_RANKS_KEY" in os.environ else None


def _ranks(numbers: Mapping[str, int | None]) -> Ranks:
    given = {name: number for name, number in numbers.items() if number is not None}
    if not given:
        return Ranks()
    missing = [name for name in numbers if name not in given]
    if missing:
        raise ValueError(
            f"{', '.join(given)} given, but not {', '.join(missing)}; give all six numbers or none"
        )
    for prefix in ("", "local_", "cross_"):
        rank, size = given[f"{prefix}rank"], given[f"{prefix}size"]
        if size < 1:
            raise ValueError(f"{prefix}size is {size}; give 1 or more")
        if not 0 <= rank < size:
            raise ValueError(
                f"{prefix}rank is {rank}; give a number from 0 to {size - 1}, as {prefix}size is"
                f" {size}"
            )
    for name in ("local_size", "cross_size"):
        if given[name] > given["size"]:
            raise ValueError(
                f"{name} is {given[name]}; give at most size, which is {given['size']}"
            )
    return Ranks(**given)


def _key(key: bytes | str | None, size: int) -> bytes:
    if key is None:
        raise ValueError(
            f"key is not given for {size} ranks; give the same 16 random bytes or more, or their"
            " hex digits, on every rank, or let det start the ranks"
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
    """Return the backend `name` of the plugin that fits best.

    That is the plugin of the framework in the module's name, else the one with the highest
    priority.
    """
    from ..hooks import Plugins

    known = Plugins.installed().backends()
    found = [record for record in known if record.name == name]
    if not found:
        names = ", ".join(sorted({record.name for record in known}))
        raise PluginError(
            f"no plugin registers the backend {name!r}; installed: {names}. Try:"
            f" {_how_to_get(name)}"
        )
    ready = [record for record in found if record.available()]
    if not ready:
        raise PluginError(f"the backend {name!r} is not available here. Try: {_how_to_get(name)}")
    words = module.split(".")
    return max(ready, key=lambda record: (record.framework in words, record.priority)).load()()


def _how_to_get(backend: str) -> str:
    then = ", then: det horovod install" if backend == "horovod" else ""
    return how_to_install(_BRINGS[backend]) + then

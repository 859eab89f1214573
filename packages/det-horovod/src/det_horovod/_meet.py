"""Connects ranks that det started with Horovod. Holds the common part of all Horovod backends."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from det_core.errors import DetError
from det_core.ranks.backend import Backend, Ranks
from det_core.ranks.distributed import launched
from det_core.ranks.network import address_to_bind, interface_towards

from ._rendezvous import TIMEOUT_SECONDS, Rendezvous, address_variables, horovod_slots

if TYPE_CHECKING:
    from det_core.config import Optimizations
    from det_core.ranks.backend import Communicator

_MEGABYTE = 1 << 20


def meet(
    control: Communicator,
    settings: Mapping[str, str] | None = None,
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> ExitStack:
    """Prepare the processes that are connected over `control` for `horovod.init()`.

    Every rank must call it. Rank 0 starts Gloo's rendezvous on a free port of its address
    `control.chief_ip`. Each process gets the variables by which Horovod finds its rank, and those
    of `settings` (see `det_horovod.settings`) that the environment does not set.

    Horovod ends a process whose peers do not come to the rendezvous within `timeout` seconds. Close
    the returned stack after `horovod.shutdown()`: that ends the rendezvous and restores the
    environment. Raises DetError if `chief_ip` is an IPv6 address, which Horovod's rendezvous does
    not support.
    """
    with ExitStack() as meeting:
        if control.size == 1:
            return meeting
        if ":" in control.chief_ip:
            raise DetError(
                "Horovod's rendezvous speaks IPv4 only, and the chief's address is"
                f" {control.chief_ip}; give its IPv4 address, or distributed.backend: native"
            )
        slots = horovod_slots([Ranks(**place) for place in control.allgather(vars(control.ranks))])
        path = ""
        if control.rank == 0:
            path = meeting.enter_context(
                Rendezvous(address_to_bind(control.chief_ip), slots)
            ).path()
        wished = dict(settings or {})
        # By default Gloo uses the interface of the host's name, which may be loopback.
        if interface := interface_towards(control.chief_ip):
            wished["HOROVOD_GLOO_IFACE"] = interface
        variables = {
            **{name: value for name, value in wished.items() if name not in os.environ},
            **slots[control.rank].variables(),
            **address_variables(control.chief_ip, control.broadcast(path), timeout),
        }
        meeting.callback(_restore, {name: os.environ.get(name) for name in variables})
        os.environ.update(variables)
        return meeting.pop_all()


def _restore(before: Mapping[str, str | None]) -> None:
    """Restore variables of the environment. None stands for a variable that was not set."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def settings(optimizations: Optimizations) -> dict[str, str]:
    """Return Horovod's variables for the tensor fusion of a configuration's `optimizations`."""
    found = {
        "HOROVOD_FUSION_THRESHOLD": str(optimizations.tensor_fusion_threshold * _MEGABYTE),
        "HOROVOD_CYCLE_TIME": f"{optimizations.tensor_fusion_cycle_time:g}",
    }
    return {**found, "HOROVOD_AUTOTUNE": "1"} if optimizations.auto_tune_tensor_fusion else found


class Begun(Backend):
    """Horovod's global process set. A subclass sets `module` to the name of Horovod's module.

    The ranks of a trial, or of a script that det launched, send objects over their own connections.
    The ranks of other scripts send them over Horovod.

    Horovod is initialized once in a process, by the script or here, and stays so until the process
    ends. Horovod 0.28.1 may crash if it is initialized twice.
    """

    module: ClassVar[str]
    named: ClassVar[Mapping[str, str]] = {}
    """Keyword arguments for Horovod's collectives of objects, such as a name."""

    def __init__(self) -> None:
        self._meeting = ExitStack()
        self._control: Communicator | None = None
        self._launched: Communicator | None = None
        self._open = False

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        """Return the backend of ranks that are connected over `control`.

        `optimizations` are those of the configuration.
        """
        hvd, backend = importlib.import_module(cls.module), cls()
        backend._control, backend.chief_ip = control, control.chief_ip
        if not hvd.is_initialized():
            wished = settings(optimizations) if optimizations is not None else None
            backend._meeting = meet(control, wished, timeout=control.timeout or TIMEOUT_SECONDS)
        elif hvd.size() != control.size:
            raise DetError(
                f"Horovod runs with {hvd.size()} ranks in this process, but the run has"
                f" {control.size}; begin it again in a process of its own"
            )
        return backend

    def init(self) -> None:
        if self._open:
            return
        self._hvd: Any = importlib.import_module(self.module)
        if not self._hvd.is_initialized():
            self._hvd.init()
        self.ranks = Ranks(
            **{field.name: getattr(self._hvd, field.name)() for field in fields(Ranks)}
        )
        if self._control is None:
            self._control = self._launched = launched()
        self._open = True

    def shutdown(self) -> None:
        self._open = False
        if self._launched is not None:
            self._launched.close()
        self._meeting.close()

    def allgather(self, value: Any) -> list[Any]:
        if self._control is not None:
            return self._control.allgather(value)
        values: list[Any] = self._call(self._hvd.allgather_object, value, **self.named)
        values[self.ranks.rank] = value
        return values

    def broadcast(self, value: Any) -> Any:
        if self._control is not None:
            return self._control.broadcast(value)
        theirs = self._call(self._hvd.broadcast_object, value, root_rank=0, **self.named)
        return value if self.ranks.rank == 0 else theirs

    def _call(self, verb: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return verb(*arguments, **options)

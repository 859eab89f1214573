"""Ranks that det started meet over Horovod, and what the Horovod backends of all frameworks have in common."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from det_core.backend import Backend, Ranks
from det_core.backends import launched
from det_core.errors import DetError
from det_core.machine import address_to_bind, interface_towards

from ._rendezvous import TIMEOUT_SECONDS, Rendezvous, address_variables, horovod_slots

if TYPE_CHECKING:
    from det_core.backend import Communicator
    from det_core.config import Optimizations

_MEGABYTE = 1 << 20


def meet(
    control: Communicator, settings: Mapping[str, str] | None = None, *, timeout: float = TIMEOUT_SECONDS
) -> ExitStack:
    """Prepare the processes that have met over `control` for `horovod.init()`; every rank calls it.

    Rank 0 opens Gloo's rendezvous on a free port of its host's address, `control.chief_ip`. Each process gets the variables
    with which Horovod finds its place, and `settings` (those of `det_horovod.settings`) where the environment has none of
    its own. Horovod ends a process whose peers do not come to Gloo within `timeout` seconds. Close what is returned after
    `horovod.shutdown()`: the rendezvous ends, and the environment is as it was. Raises DetError where `chief_ip` is of IPv6,
    which Horovod's rendezvous does not speak.
    """
    with ExitStack() as meeting:
        if control.size == 1:
            return meeting
        if ":" in control.chief_ip:
            raise DetError(
                f"Horovod's rendezvous speaks IPv4 only, and the chief's address is {control.chief_ip}; give its IPv4 address, "
                "or distributed.backend: native"
            )
        slots = horovod_slots([Ranks(**place) for place in control.allgather(vars(control.ranks))])
        path = ""
        if control.rank == 0:
            path = meeting.enter_context(Rendezvous(address_to_bind(control.chief_ip), slots)).path()
        wished = dict(settings or {})
        if interface := interface_towards(
            control.chief_ip
        ):  # Gloo would take that of the host's name, which may be loopback
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
    """Put variables of the environment back as they were."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def settings(optimizations: Optimizations) -> dict[str, str]:
    """Return the variables of tensor fusion that `optimizations` of a configuration means."""
    found = {
        "HOROVOD_FUSION_THRESHOLD": str(optimizations.tensor_fusion_threshold * _MEGABYTE),
        "HOROVOD_CYCLE_TIME": f"{optimizations.tensor_fusion_cycle_time:g}",
    }
    return {**found, "HOROVOD_AUTOTUNE": "1"} if optimizations.auto_tune_tensor_fusion else found


class Begun(Backend):
    """Horovod's global process set; derive from it, and name Horovod's `module`.

    Objects travel over the connections on which the ranks of a trial, or of a script that det launched, have met; those of
    other scripts over Horovod. That is begun once in a process, by the script or here, and lasts until the process ends:
    0.28.1 may crash where it is begun a second time.
    """

    module: ClassVar[str]
    named: ClassVar[Mapping[str, str]] = {}
    """What Horovod's collectives of objects are to be called."""

    def __init__(self) -> None:
        self._meeting = ExitStack()
        self._control: Communicator | None = None
        self._launched: Communicator | None = None
        self._open = False

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        """Return the backend of ranks that have met over `control`; `optimizations` are those of the configuration."""
        hvd, backend = importlib.import_module(cls.module), cls()
        backend._control, backend.chief_ip = control, control.chief_ip
        if not hvd.is_initialized():
            wished = settings(optimizations) if optimizations is not None else None
            backend._meeting = meet(control, wished, timeout=control.timeout or TIMEOUT_SECONDS)
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
        self.ranks = Ranks(**{field.name: getattr(self._hvd, field.name)() for field in fields(Ranks)})
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

"""Ranks that det started meet over Horovod, and what the Horovod backends of all frameworks have in common."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from det_core.backend import Backend, Ranks
from det_core.errors import DetError
from det_core.machine import interface_towards

from ._rendezvous import Rendezvous, Slot, address_variables

if TYPE_CHECKING:
    from det_core.backend import Communicator
    from det_core.config import Optimizations

TIMEOUT_SECONDS = 600.0
_MEGABYTE = 1 << 20
_NAMES = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


def meet(
    control: Communicator, settings: Mapping[str, str] | None = None, *, timeout: float = TIMEOUT_SECONDS
) -> Meeting:
    """Prepare the processes that have met over `control` for `horovod.init()`; every rank calls it.

    Rank 0 opens Gloo's rendezvous on a free port of its host's address, `control.chief_ip`. Each process gets the variables
    with which Horovod finds its place, and `settings` (those of `det_horovod.settings`) where the environment has none of
    its own. Horovod ends a process whose peers do not come to Gloo within `timeout` seconds. Close what is returned after
    `horovod.shutdown()`. Raises DetError where `chief_ip` is of IPv6, which Horovod's rendezvous does not speak.
    """
    if control.size == 1:
        return Meeting({})
    if ":" in control.chief_ip:
        raise DetError(
            f"Horovod's rendezvous speaks IPv4 only, and the chief's address is {control.chief_ip}; give its IPv4 address, or "
            "distributed.backend: native"
        )
    slots = horovod_slots(control.allgather(Ranks(**{name: getattr(control, name) for name in _NAMES})))
    defaults = {**(settings or {}), **_interface(control.chief_ip)}
    variables = {
        **{name: value for name, value in defaults.items() if name not in os.environ},
        **slots[control.rank].variables(),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(timeout))),
    }
    if control.rank:
        return Meeting({**variables, **address_variables(control.chief_ip, control.broadcast(None))})
    rendezvous = Rendezvous(control.chief_ip, slots)
    try:
        control.broadcast(rendezvous.path())
    except BaseException:
        rendezvous.close()
        raise
    return Meeting({**variables, **address_variables(control.chief_ip, rendezvous.path())}, rendezvous)


class Meeting:
    """Holds the variables of this process and, on rank 0, the rendezvous, until it is closed."""

    def __init__(self, variables: Mapping[str, str], rendezvous: Rendezvous | None = None) -> None:
        self._rendezvous = rendezvous
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    def close(self) -> None:
        """Stop the rendezvous and put the environment back as it was; safe to call twice."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _interface(chief_ip: str) -> dict[str, str]:
    """Return the network interface towards the chief; Gloo would take that of the host's name, which may be loopback."""
    found = interface_towards(chief_ip)
    return {"HOROVOD_GLOO_IFACE": found} if found else {}


def horovod_slots(places: Sequence[Ranks]) -> list[Slot]:
    """Return where Horovod sees the ranks; it numbers the hosts anew for each local rank."""
    return [_slot(place, [p.cross_rank for p in places if p.local_rank == place.local_rank]) for place in places]


def _slot(place: Ranks, hosts: list[int]) -> Slot:
    """`hosts` are those that have a rank of the same local number."""
    return Slot(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        local_size=place.local_size,
        cross_rank=sorted(hosts).index(place.cross_rank),
        cross_size=len(hosts),
        hostname=f"host{place.cross_rank}",
    )


def settings(optimizations: Optimizations) -> dict[str, str]:
    """Return the variables of tensor fusion that `optimizations` of a configuration means."""
    found = {
        "HOROVOD_FUSION_THRESHOLD": str(optimizations.tensor_fusion_threshold * _MEGABYTE),
        "HOROVOD_CYCLE_TIME": f"{optimizations.tensor_fusion_cycle_time:g}",
    }
    return {**found, "HOROVOD_AUTOTUNE": "1"} if optimizations.auto_tune_tensor_fusion else found


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

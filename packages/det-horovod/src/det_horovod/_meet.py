"""Ranks that det started meet over Horovod."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from det_core.backend import Ranks
from det_core.errors import DetError

from ._rendezvous import Rendezvous, Slot, address_variables

if TYPE_CHECKING:
    from det_core.backend import Communicator

TIMEOUT_SECONDS = 600.0
_NAMES = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
_SIOCGIFADDR = 0x8915


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


def _interface(chief_ip: str) -> dict[str, str]:
    """Return the network interface towards the chief; Gloo would take that of the host's name, which may be loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((chief_ip, 9))  # sends nothing, but chooses a route
        mine = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if mine == _address_of(name, probe):
                return {"HOROVOD_GLOO_IFACE": name}
    return {}


def _address_of(interface: str, probe: socket.socket) -> str | None:
    with contextlib.suppress(OSError):  # it has none
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(answer[20:24])
    return None

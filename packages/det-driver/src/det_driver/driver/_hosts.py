"""The machines on which an experiment's trials run, where the configuration names any."""

from __future__ import annotations

from det_core.distributed import LOOPBACK
from det_core.launch import Host, address_of_this, addresses


def driver_address(hosts: list[Host]) -> str:
    """Return the address at which the workers of a run reach its driver."""
    return address_of_this(hosts, addresses(hosts, None)) if hosts else LOOPBACK

"""The machines on which an experiment's trials run, where the configuration names any."""

from __future__ import annotations

from ..config import ExperimentConfig
from ..distributed import LOOPBACK
from ..errors import ConfigError, DetError
from ..launchers import Host, address_of_this, addresses, parse_hosts


def hosts_of(config: ExperimentConfig) -> list[Host]:
    """Return the machines of `distributed.hosts`, none for this one. Raises ConfigError for what is wrong with them.

    A trial takes all of their slots, as nobody leases those of other machines.
    """
    named = config.distributed.hosts
    if not named:
        return []
    try:
        hosts = parse_hosts(",".join(name if _has_slots(name) else f"{name}:1" for name in named))
        addresses(hosts, None)
    except DetError as error:
        raise ConfigError(str(error).replace("--hosts", "distributed.hosts")) from error
    there, wanted = sum(host.slots for host in hosts), config.resources.slots_per_trial
    if there != wanted:
        raise ConfigError(
            f"resources.slots_per_trial is {wanted}, but distributed.hosts has {there} slots; let them agree, as a trial takes all"
        )
    return hosts


def driver_address(hosts: list[Host]) -> str:
    """Return the address at which the workers of a run reach its driver."""
    return address_of_this(hosts, addresses(hosts, None)) if hosts else LOOPBACK


def _has_slots(name: str) -> bool:
    return name.rpartition(":")[2].isdigit() and (name.count(":") == 1 or "]:" in name)

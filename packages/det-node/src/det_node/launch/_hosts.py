"""The hosts on which ranks run: `--hosts h1:2,h2:2`."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from det_core.config import ExperimentConfig
from det_core.errors import ConfigError, DetError
from det_core.ranks.backend import Ranks
from det_core.ranks.network import address_towards, is_loopback

from ..machine import address_for, given_address

SSH = "ssh -o BatchMode=yes {host}"
LOCAL = "127.0.0.1"
_HOST = re.compile(r"(?P<name>\[[^\]]+\]|[^:\s,]+):(?P<slots>\d+)\Z")


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host and its number of ranks. `here` says that it is this machine."""

    name: str
    slots: int
    here: bool


def this_host(slots: int) -> list[Host]:
    """Return this machine alone."""
    return [Host(name=LOCAL, slots=slots, here=True)]


def parse_hosts(text: str) -> list[Host]:
    """Return the hosts of `--hosts`. Raises DetError where the text is wrong."""
    hosts = []
    for part in text.split(","):
        match = _HOST.match(part.strip())
        slots = int(match["slots"]) if match else 0
        if not match or not 0 < slots <= 4096:
            raise DetError(
                f"--hosts has {part.strip()!r}; write name:slots, such as h1:2,h2:2, with 1 slot or"
                " more each"
            )
        name = match["name"].strip("[]")
        hosts.append(Host(name=name, slots=slots, here=is_local_host(name)))
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DetError(
            f"--hosts names {twice[0]!r} twice; give each host once, with all of its slots"
        )
    return hosts


def is_local_host(name: str) -> bool:
    """Return whether a name or address belongs to this machine, which can then listen on it."""
    if name in ("localhost", socket.gethostname()):
        return True
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with (
                contextlib.suppress(OSError, OverflowError),
                socket.socket(family, socket.SOCK_STREAM) as sock,
            ):
                sock.bind(address)
                return True
    return False


def ranks_on(hosts: Sequence[Host]) -> list[Ranks]:
    """Return the place of each rank. Ranks fill one host after another."""
    places = [(cross, local) for cross, host in enumerate(hosts) for local in range(host.slots)]
    return [
        Ranks(
            rank=rank,
            size=len(places),
            local_rank=local,
            local_size=hosts[cross].slots,
            cross_rank=cross,
            cross_size=len(hosts),
        )
        for rank, (cross, local) in enumerate(places)
    ]


def addresses(hosts: Sequence[Host], chief_ip: str | None) -> list[str]:
    """Return the address of each host, as the others reach it.

    The first address is `chief_ip` where that is given. The address of this machine is
    `DET_ADDRESS` where that is set. Debian maps a machine's own name to 127.0.1.1. In that case
    this machine's address is the one on the route to the others.
    """
    named = [_address(host, hosts) for host in hosts]
    named[0] = chief_ip or named[0]
    for host, address in zip(hosts, named, strict=True):
        if len(hosts) > 1 and is_loopback(address):
            way_out = (
                "give --chief-ip" if host is hosts[0] else "give its name or address in --hosts"
            )
            way_out += ", or set DET_ADDRESS" if host.here else ""
            raise DetError(
                f"the host {host.name!r} is {address} to the others, which is each one's own;"
                f" {way_out}"
            )
    return named


def _address(host: Host, hosts: Sequence[Host]) -> str:
    others = [other.name for other in hosts if other is not host]
    if not (host.here and others):
        return host.name
    if (given := given_address()) or is_loopback(host.name):
        return given or host.name
    try:
        found = {str(at[0]) for *_, at in socket.getaddrinfo(host.name, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return host.name
    return (address_towards(others[0]) or host.name) if all(map(is_loopback, found)) else host.name


def address_of_this(hosts: Sequence[Host], named: Sequence[str]) -> str:
    """Return the address of this machine as the hosts reach it."""
    mine = [address for host, address in zip(hosts, named, strict=True) if host.here]
    return mine[0] if mine else address_for(hosts[0].name) or socket.gethostname()


def hosts_of(config: ExperimentConfig) -> list[Host]:
    """Return the hosts of `distributed.hosts`, or none for this one.

    Raises ConfigError where they are wrong. A trial takes all of their slots, as slots of other
    machines are not leased.
    """
    named = config.distributed.hosts
    if not named:
        return []
    try:
        hosts = parse_hosts(",".join(name if _HOST.match(name) else f"{name}:1" for name in named))
        addresses(hosts, None)
    except DetError as error:
        raise ConfigError(str(error).replace("--hosts", "distributed.hosts")) from error
    there, wanted = sum(host.slots for host in hosts), config.resources.slots_per_trial
    if there != wanted:
        raise ConfigError(
            f"resources.slots_per_trial is {wanted}, but distributed.hosts has {there} slots; let"
            " them agree, as a trial takes all"
        )
    return hosts


def agent_argv(host: Host, template: str) -> list[str]:
    """Return the command that starts the agent of a host, directly or through the template."""
    command = [sys.executable, "-P", "-m", "det_node.agent", "-"]
    return command if host.here else reaching(host.name, template, command)


def reaching(host: str, template: str, command: Sequence[str]) -> list[str]:
    """Return the command that runs another command on a host."""
    words = [word.replace("{host}", host) for word in shlex.split(template)]
    if not words:
        raise DetError(
            f"--agent is {template!r}; give a command that runs what follows it on {{host}}"
        )
    # ssh passes its arguments to a shell.
    if os.path.basename(words[0]) == "ssh":
        command = [shlex.quote(word) for word in command]
    return [*words, *command]

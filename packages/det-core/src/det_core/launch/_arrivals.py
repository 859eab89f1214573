"""Seeing from outside whether a rank has come to its meeting: whether it has a socket at the port."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_ESTABLISHED, _LISTEN = "01", "0A"


def arrived(ports: dict[int, int]) -> set[int]:
    """Return which of the processes have come; `ports` is, for the leader of each session, the port it comes to."""
    sockets = {port: _sockets_at(port) for port in set(ports.values())}
    if not any(sockets.values()):
        return set()
    members = _members(ports)
    return {leader for leader, port in ports.items() if any(_holds(pid, sockets[port]) for pid in members[leader])}


def _sockets_at(port: int) -> set[str]:
    """Return the links that descriptors of sockets are which listen at a port, or are connected from it or to it."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            local, remote, state, inode = fields[1], fields[2], fields[3], fields[9]
            at = {_ESTABLISHED: (local, remote), _LISTEN: (local,)}.get(state, ())
            if any(int(address.rpartition(":")[2], 16) == port for address in at):
                found.add(f"socket:[{inode}]")
    return found


def _members(leaders: Iterable[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {leader: [] for leader in leaders}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                session = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[3])
            except (OSError, IndexError):
                continue
            if session in members:
                members[session].append(int(entry))
    return members


def _holds(pid: int, sockets: set[str]) -> bool:
    return any(link in sockets for link in _links(pid))


def _links(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")

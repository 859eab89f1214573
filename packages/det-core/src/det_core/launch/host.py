"""Starts and supervises the ranks of one host: `python -m det_core.launch.host`, started by the launcher.

It reads JSON from its standard input, a line each: what to prepare, what to start, then signals to pass on. When that
closes, whoever closed it, the ranks are killed; a SIGTERM to this process is theirs, so that they can save where every
process of a job is asked to end. What it says on its standard output is framed (`_frames`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import DetError
from ..machine import reserved
from ..process import adopt_orphans, kill_below
from ._frames import BEAT_SECONDS, CHUNK, Kind, Lines, Teller
from ._group import Group, RankExit
from ._plan import cannot_start, commands

GRACE_SECONDS = 5.0
_ESTABLISHED, _LISTEN = "01", "0A"


def main() -> int:
    """Serve one launch; return 0, whatever became of the ranks."""
    lines = Lines(sys.stdin.fileno())
    tell = Teller(sys.stdout.fileno())
    try:
        prepare = lines.next()
        if prepare is not None:
            with reserved(prepare["ports"], prepare["first_port"]) as ports:
                tell(Kind.READY, body=json.dumps(ports).encode())
                order = lines.next()
                if order is not None:
                    _Ranks(order, tell).supervise(lines)
    except DetError as error:
        tell(Kind.PROBLEM, body=str(error).encode())
    tell(Kind.END)
    tell.close()
    return 0


class _Ranks:
    """The host's ranks, from start to end."""

    def __init__(self, order: dict[str, Any], tell: Teller) -> None:
        self._tell = tell
        self._over = os.eventfd(0)
        self._ready = threading.Event()  # a rank may end before the group that it is of is known here
        self._told = False
        self._numbers = [rank["rank"] for rank in order["ranks"]]
        pipes = [os.pipe() for _ in self._numbers]
        outputs = [write for _, write in pipes]
        adopt_orphans()
        try:
            self._group = Group(
                commands(order, os.environ, outputs), self._ended, each=self._one_ended, grace=GRACE_SECONDS
            )
        except OSError as error:
            raise cannot_start(error, order) from error
        finally:
            for _, write in pipes:
                os.close(write)
        for rank, pid in zip(self._numbers, self._group.pids, strict=True):
            tell(Kind.STARTED, rank, str(pid).encode())
        self._ready.set()
        signal.signal(signal.SIGTERM, lambda number, frame: self._group.signal(signal.SIGTERM))
        self._pumps = [self._pump(rank, read) for rank, (read, _) in zip(self._numbers, pipes, strict=True)]
        ports = {pid: r["port"] for pid, r in zip(self._group.pids, order["ranks"], strict=True) if r["port"]}
        threading.Thread(target=self._watch, args=(ports,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def supervise(self, lines: Lines) -> None:
        """Pass on what the launcher asks for, until the ranks have ended."""
        while (line := lines.next(self._over)) is not None:
            self._told = True
            if "signal" in line:
                self._group.signal(signal.Signals(line["signal"]))
            else:
                self._end()
        if not self._group.join(0):
            self._group.signal(signal.SIGKILL)  # the launcher is gone
        self._group.join()
        kill_below(os.getpid())
        for pump in self._pumps:
            pump.join()

    def _end(self) -> None:
        """End the ranks, as one on another host has failed."""
        self._group.signal(signal.SIGTERM)
        threading.Thread(target=self._kill_later, daemon=True).start()

    def _kill_later(self) -> None:
        if not self._group.join(GRACE_SECONDS):
            self._group.signal(signal.SIGKILL)

    # In the group's thread

    def _one_ended(self, exit: RankExit) -> None:
        self._ready.wait()
        rank = self._numbers[exit.rank]
        self._tell(Kind.EXITED, rank, json.dumps({"status": exit.status, "killed": exit.killed}).encode())
        if exit.status and not self._told:
            self._told = True
            self._group.signal(signal.SIGTERM)

    def _ended(self, exits: list[RankExit]) -> None:
        os.eventfd_write(self._over, 1)

    # In threads of their own

    def _pump(self, rank: int, read: int) -> threading.Thread:
        thread = threading.Thread(target=self._forward, args=(rank, read), daemon=True)
        thread.start()
        return thread

    def _forward(self, rank: int, read: int) -> None:
        """Tell what a rank writes, and what it started, until all of them have ended."""
        while data := os.read(read, CHUNK):
            self._tell.output(rank, data)
        os.close(read)

    def _beat(self) -> None:
        while not self._group.join(BEAT_SECONDS):
            self._tell(Kind.BEAT)

    def _watch(self, ports: dict[int, int]) -> None:
        """Tell which ranks have come to the meeting."""
        ranks = dict(zip(self._group.pids, self._numbers, strict=True))
        waiting, pause = dict(ports), 0.1
        while waiting and not self._group.join(pause):
            pause = min(1.0, pause * 1.2)
            for pid in arrived(waiting):
                del waiting[pid]
                self._tell(Kind.CAME, ranks[pid])


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
    with contextlib.suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


if __name__ == "__main__":
    sys.exit(main())

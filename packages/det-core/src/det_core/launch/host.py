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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import DetError
from ..machine import reserved
from ..process import adopt_orphans, kill_below
from ._frames import BEAT_SECONDS, CHUNK, Kind, Teller
from ._group import Group, RankExit
from ._plan import cannot_start, commands

GRACE_SECONDS = 5.0
_ESTABLISHED, _LISTEN = "01", "0A"


def main() -> int:
    """Serve one launch; return 0, whatever became of the ranks."""
    lines = map(json.loads, open(sys.stdin.fileno(), "rb", closefd=False))  # noqa: SIM115 - a thread may read it to the last
    tell = Teller(sys.stdout.fileno())
    try:
        if prepare := next(lines, None):
            with reserved(prepare["ports"], prepare["first_port"]) as ports:
                tell(Kind.READY, body=json.dumps(ports).encode())
                if order := next(lines, None):
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
        self._ready = threading.Event()  # a rank may end before the group that it is of is known here
        self._told = False
        self._numbers = [rank["rank"] for rank in order["ranks"]]
        pipes = [os.pipe() for _ in self._numbers]
        outputs = [write for _, write in pipes]
        adopt_orphans()
        try:
            self._group = Group(commands(order, os.environ, outputs), each=self._ended, grace=GRACE_SECONDS)
        except OSError as error:
            raise cannot_start(order["argv"], order["cwd"], error) from error
        finally:
            for _, write in pipes:
                os.close(write)
        self._ready.set()
        signal.signal(signal.SIGTERM, lambda number, frame: self._group.signal(signal.SIGTERM))
        self._pumps = [_thread(self._pump, rank, read) for rank, (read, _) in zip(self._numbers, pipes, strict=True)]
        _thread(
            self._watch, {pid: r["port"] for pid, r in zip(self._group.pids, order["ranks"], strict=True) if r["port"]}
        )
        _thread(self._beat)

    def supervise(self, lines: Iterator[dict[str, Any]]) -> None:
        """Do what the launcher asks for, until the ranks have ended."""
        _thread(self._obey, lines)
        self._group.join()
        kill_below(os.getpid())
        for pump in self._pumps:
            pump.join()

    # In the group's thread

    def _ended(self, exit: RankExit) -> None:
        self._ready.wait()
        rank = self._numbers[exit.rank]
        self._tell(Kind.EXITED, rank, json.dumps({"status": exit.status, "killed": exit.killed}).encode())
        if exit.status and not self._told:
            self._told = True
            self._group.signal(signal.SIGTERM)

    # In threads of their own

    def _obey(self, lines: Iterator[dict[str, Any]]) -> None:
        for line in lines:
            self._told = True
            if "signal" in line:
                self._group.signal(signal.Signals(line["signal"]))
            else:  # a rank on another host has failed
                self._group.signal(signal.SIGTERM)
                _thread(self._kill_later)
        self._group.signal(signal.SIGKILL)  # the launcher is gone

    def _kill_later(self) -> None:
        if not self._group.join(GRACE_SECONDS):
            self._group.signal(signal.SIGKILL)

    def _pump(self, rank: int, read: int) -> None:
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


def _thread(target: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def arrived(ports: dict[int, int]) -> set[int]:
    """Return which of the processes have come; `ports` is, for the leader of each session, the port it comes to."""
    sockets, found = {port: _sockets_at(port) for port in set(ports.values())}, set[int]()
    if not any(sockets.values()):
        return found
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            leader = os.getsid(int(pid))
            if leader in ports and not sockets[ports[leader]].isdisjoint(_links(pid)):
                found.add(leader)
    return found


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


def _links(pid: str) -> Iterator[str]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{name}")


if __name__ == "__main__":
    sys.exit(main())

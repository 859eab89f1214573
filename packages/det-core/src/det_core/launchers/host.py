"""Starts and supervises the ranks of one host: `python -m det_core.launchers.host`, started by the launcher.

It reads JSON from its standard input, a line each: what to prepare, what to start, then signals to pass on. When that
closes, whoever closed it, the ranks are killed. What it says on its standard output is framed (`_frames`).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ..devices import gpus
from ..errors import DetError
from ._arrivals import arrived
from ._frames import MAGIC, Kind, encode
from ._group import Command, Exit, Group
from ._hosts import cannot_run
from ._ports import reserved

GRACE_SECONDS = 5.0
_CHUNK = 1 << 16
_CHUNKS_AHEAD = 64


def main() -> int:
    """Serve one launch; return 0, whatever became of the ranks."""
    lines = _Lines(sys.stdin.fileno())
    tell = _Teller(sys.stdout.fileno())
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

    def __init__(self, order: dict[str, Any], tell: _Teller) -> None:
        self._tell = tell
        self._over = os.eventfd(0)
        self._told = False
        self._numbers = [rank["rank"] for rank in order["ranks"]]
        pipes = [os.pipe() for _ in self._numbers]
        commands = _commands(order, [write for _, write in pipes])
        _adopt_orphans()
        try:
            self._group = Group(commands, self._ended, each=self._one_ended, grace=GRACE_SECONDS)
        except OSError as error:
            raise _cannot_start(error, order) from error
        finally:
            for _, write in pipes:
                os.close(write)
        for rank, pid in zip(self._numbers, self._group.pids, strict=True):
            tell(Kind.STARTED, rank, str(pid).encode())
        self._pumps = [self._pump(rank, read) for rank, (read, _) in zip(self._numbers, pipes, strict=True)]
        ports = {pid: r["port"] for pid, r in zip(self._group.pids, order["ranks"], strict=True) if r["port"]}
        threading.Thread(target=self._watch, args=(ports,), daemon=True).start()

    def supervise(self, lines: _Lines) -> None:
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
        _end_orphans()
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

    def _one_ended(self, exit: Exit) -> None:
        rank = self._numbers[exit.rank]
        self._tell(Kind.EXITED, rank, json.dumps({"status": exit.status, "killed": exit.killed}).encode())
        if exit.status and not self._told:
            self._told = True
            self._group.signal(signal.SIGTERM)

    def _ended(self, exits: list[Exit]) -> None:
        os.eventfd_write(self._over, 1)

    # In threads of their own

    def _pump(self, rank: int, read: int) -> threading.Thread:
        thread = threading.Thread(target=self._forward, args=(rank, read), daemon=True)
        thread.start()
        return thread

    def _forward(self, rank: int, read: int) -> None:
        """Tell what a rank writes, and what it started, until all of them have ended."""
        while data := os.read(read, _CHUNK):
            self._tell.output(rank, data)
        os.close(read)

    def _watch(self, ports: dict[int, int]) -> None:
        """Tell which ranks have come to the meeting."""
        ranks = dict(zip(self._group.pids, self._numbers, strict=True))
        waiting, pause = dict(ports), 0.1
        while waiting and not self._group.join(pause):
            pause = min(1.0, pause * 1.2)
            for pid in arrived(waiting):
                del waiting[pid]
                self._tell(Kind.CAME, ranks[pid])


class _Lines:
    """Lines of JSON from a descriptor; waiting for one ends, too, when the other descriptor becomes readable."""

    def __init__(self, fd: int) -> None:
        self._fd, self._data = fd, b""

    def next(self, over: int | None = None) -> dict[str, Any] | None:
        """Return the next line, None at the end."""
        while b"\n" not in self._data:
            ready, _, _ = select.select([self._fd] if over is None else [self._fd, over], [], [])
            if over in ready:
                return None
            data = os.read(self._fd, _CHUNK)
            if not data:
                return None
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


class _Teller:
    """Writes frames in a thread of its own, so that a launcher that does not read delays nothing but the ranks' output."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ahead = threading.Semaphore(_CHUNKS_AHEAD)
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._frames.put(MAGIC)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def __call__(self, kind: Kind, rank: int = 0, body: bytes = b"") -> None:
        self._frames.put(encode(kind, rank, body))

    def output(self, rank: int, data: bytes) -> None:
        self._ahead.acquire()
        self(Kind.OUTPUT, rank, data)

    def close(self) -> None:
        self._frames.put(None)
        self._thread.join()

    def _write(self) -> None:
        there = True
        while (frame := self._frames.get()) is not None:
            view = memoryview(frame)
            while there and view:
                try:
                    view = view[os.write(self._fd, view) :]
                except OSError:  # the launcher is gone; what is asked of this process is to end the ranks
                    there = False
            if frame[:1] == bytes([Kind.OUTPUT]):
                self._ahead.release()


def _commands(order: dict[str, Any], outputs: list[int]) -> list[Command]:
    base = {**os.environ, **order["env"]} if order["merge"] else order["env"]
    ranks = order["ranks"]
    devices = _shared_gpus(base, len(ranks)) if order["gpus"] else [{}] * len(ranks)
    threads = _shared_threads(base, len(ranks))
    return [
        Command(
            argv=order["argv"],
            env={"PYTHONUNBUFFERED": "1", **base, **threads, **device, **rank["env"]},
            cwd=Path(order["cwd"]),
            output=output,
            leash=True,
        )
        for rank, device, output in zip(ranks, devices, outputs, strict=True)
    ]


def _shared_gpus(environ: dict[str, str], ranks: int) -> list[dict[str, str]]:
    """Give one GPU to each rank; where there are fewer, some share one."""
    found = gpus(environ)
    return [{"CUDA_VISIBLE_DEVICES": found[n % len(found)]} if found else {} for n in range(ranks)]


def _shared_threads(environ: dict[str, str], ranks: int) -> dict[str, str]:
    if "OMP_NUM_THREADS" in environ or ranks == 1:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks))}


def _cannot_start(error: OSError, order: dict[str, Any]) -> DetError:
    cwd = order["cwd"]
    if not Path(cwd).is_dir():
        return DetError(f"there is no directory {cwd} on {os.uname().nodename}; the code must be there on every host")
    return cannot_run(order["argv"][0], error)


def _adopt_orphans() -> None:
    """Become the parent of what ranks start and leave, also in sessions of its own."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def _end_orphans() -> None:
    """Kill what is left; killing one may bring its children here."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := [int(pid) for pid in children.read_text().split()] if children.exists() else []:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())

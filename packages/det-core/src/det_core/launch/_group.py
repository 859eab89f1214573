"""The processes of several ranks, started together and ended together."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..process import end_group, kill_below

GRACE_SECONDS = 3.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Command:
    """What one rank runs; `env` is its whole environment, `output` where both its outputs go, `fds` what it inherits.

    With `leash` it is killed when the thread that started it ends, however that comes about.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    output: int | IO[bytes] | None = None
    fds: tuple[int, ...] = ()
    leash: bool = False


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How a rank's process ended; a negative status is a signal's number. `killed` says that the group ended it."""

    rank: int
    status: int
    killed: bool = False


class Group:
    """Starts a process for each command, each the leader of a session of its own, and supervises them.

    When one fails, the others get `grace` seconds to find out and say so; when one ends well, `patience` seconds to end
    too, by default as long as they need. Then they are killed, with all that they started. From the group's thread, `each` is
    called for each exit, at once, and `ended` in the end with all of them, in the order in which they came. A command that
    cannot be started ends those before it, and raises OSError.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        ended: Callable[[list[RankExit]], None] = lambda exits: None,
        *,
        each: Callable[[RankExit], None] = lambda exit: None,
        grace: float = GRACE_SECONDS,
        patience: float | None = None,
    ) -> None:
        self._ended, self._each, self._grace, self._patience = ended, each, grace, patience
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._watched: dict[int, int] = {}  # the ranks, by the descriptors of their processes
        self._doomed: set[int] = set()
        self.pids: list[int] = []
        try:
            for rank, command in enumerate(commands):
                self._running[rank] = _start(command)
                self.pids.append(self._running[rank].pid)
                self._watched[os.pidfd_open(self.pids[-1])] = rank
            self._thread = threading.Thread(target=self._supervise, name="det-ranks", daemon=True)
            self._thread.start()
        except (OSError, RuntimeError) as error:
            for process in self._running.values():
                end_group(process.pid)
                process.wait()
            for pidfd in self._watched:
                os.close(pidfd)
            if isinstance(error, RuntimeError):  # no more threads
                raise OSError(errno.EAGAIN, str(error)) from error
            raise

    def signal(self, number: signal.Signals) -> None:
        """Signal every rank's processes; harmless when they have ended."""
        with self._lock:
            if number == signal.SIGKILL:
                self._doomed.update(self._running)
            for process in self._running.values():
                if number == signal.SIGKILL:  # first what it started in sessions of their own, while it is there to ask
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process.pid, signal.SIGSTOP)
                        kill_below(process.pid)
                end_group(process.pid, number)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every rank has ended and `ended` has been called; tell whether that is so."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _supervise(self) -> None:
        poll, ranks, exits = select.poll(), self._watched, list[RankExit]()
        for pidfd in ranks:
            poll.register(pidfd, select.POLLIN)
        deadline: float | None = None
        while ranks:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = poll.poll(left)
            if not ready:
                deadline = None
                self.signal(signal.SIGKILL)
            for pidfd, _ in ready:
                poll.unregister(pidfd)
                os.close(pidfd)
                exits.append(self._reap(ranks.pop(pidfd)))
                self._each(exits[-1])
                deadline = self._deadline(deadline, exits[-1])
        self._ended(exits)

    def _reap(self, rank: int) -> RankExit:
        """Take the status of a process that has ended, and end what it started."""
        process = self._running[rank]
        # It stays a zombie until it is waited for, so that its group's number cannot be taken by another while it is killed.
        end_group(process.pid)
        with self._lock:
            del self._running[rank]
            return RankExit(rank=rank, status=process.wait(), killed=rank in self._doomed)

    def _deadline(self, known: float | None, exit: RankExit) -> float | None:
        left = self._grace if exit.status else self._patience
        if exit.killed or left is None:
            return known
        return min(known or math.inf, time.monotonic() + left)


def _start(command: Command) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(command.argv),
        cwd=command.cwd,
        env=dict(command.env),
        stdin=subprocess.DEVNULL,
        stdout=command.output,
        stderr=command.output,
        start_new_session=True,
        pass_fds=command.fds,
        preexec_fn=_leash() if command.leash else None,  # noqa: PLW1509 - it calls nothing that another thread could hold
    )


def _leash() -> Callable[[], None]:
    """Return what a child calls to be killed with its parent."""
    import ctypes

    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def be_leashed() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)  # it ended before it could be noticed

    return be_leashed

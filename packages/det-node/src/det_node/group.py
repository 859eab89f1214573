"""The processes of several ranks, which are started and ended together."""

from __future__ import annotations

import contextlib
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

from det_core.errors import DetError
from det_core.support.threads import start_thread

from .process import end_group, kill_below

GRACE_SECONDS = 3.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Command:
    """What one rank runs.

    `env` is its whole environment, `output` gets both of its output streams, and `fds` are
    descriptors that it inherits. With `leash` it is killed when the thread that started it ends, in
    whatever way.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    output: int | IO[bytes] | None = None
    fds: tuple[int, ...] = ()
    leash: bool = False


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How a rank's process ended.

    A negative status is a signal's number. `killed` says that the group ended it.
    """

    rank: int
    status: int
    killed: bool = False


class Group:
    """Starts a process for each command, each in its own session, and supervises them.

    When one fails, the others get GRACE_SECONDS to notice and report it. When one ends well, the
    others get `patience` seconds to end, by default without a limit. Then they are killed, with all
    that they started.

    The group's thread calls `ended` at the end with all exits in their order. Raises OSError where
    a command cannot be started, after ending those before it.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        ended: Callable[[list[RankExit]], None],
        *,
        patience: float | None = None,
    ) -> None:
        self._ended, self._patience = ended, patience
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        # Ranks, by their processes' pidfds.
        self._watched: dict[int, int] = {}
        self._doomed: set[int] = set()
        self.pids: list[int] = []
        try:
            for rank, command in enumerate(commands):
                self._running[rank] = _start(command)
                self.pids.append(self._running[rank].pid)
                self._watched[os.pidfd_open(self.pids[-1])] = rank
            self._thread = start_thread(
                self._supervise, name="det-ranks", failed=self._unsupervised
            )
        except OSError:
            for process in self._running.values():
                end_group(process.pid)
                process.wait()
            for pidfd in self._watched:
                os.close(pidfd)
            raise

    def signal(self, number: signal.Signals) -> None:
        """Signal every rank's processes. Does nothing when they have ended."""
        with self._lock:
            if number == signal.SIGKILL:
                self._doomed.update(self._running)
            for process in self._running.values():
                # First kill what it started in other sessions, while it still exists as their
                # parent.
                if number == signal.SIGKILL:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process.pid, signal.SIGSTOP)
                        kill_below(process.pid)
                end_group(process.pid, number)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every rank has ended and `ended` has returned. Return whether that is so."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _unsupervised(self, error: BaseException) -> None:
        self.signal(signal.SIGKILL)

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
                deadline = self._deadline(deadline, exits[-1])
        self._ended(exits)

    def _reap(self, rank: int) -> RankExit:
        """Return how a process ended, and end what it started."""
        process = self._running[rank]
        # The process is a zombie until it is waited for. So no other group gets its number before
        # this kill.
        end_group(process.pid)
        with self._lock:
            del self._running[rank]
            return RankExit(rank=rank, status=process.wait(), killed=rank in self._doomed)

    def _deadline(self, known: float | None, exit: RankExit) -> float | None:
        left = GRACE_SECONDS if exit.status else self._patience
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
        # It calls nothing that another thread could hold.
        preexec_fn=(_leash() if command.leash else None),  # noqa: PLW1509
    )


def _leash() -> Callable[[], None]:
    """Return a function that a child calls so that it is killed with its parent."""
    import ctypes

    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def be_leashed() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            # The parent ended before prctl took effect.
            os._exit(1)

    return be_leashed


def cannot_start(argv: Sequence[str], cwd: Path, error: OSError) -> DetError:
    """Return the error for a command that cannot be started."""
    here = os.uname().nodename
    if not cwd.is_dir():
        return DetError(
            f"there is no directory {cwd} on {here}; the code must be there on every host"
        )
    hint = f"write: python3 {argv[0]}" if argv[0].endswith(".py") else "see PATH"
    return DetError(f"cannot run {argv[0]!r} on {here}: {error.strerror}; {hint}")

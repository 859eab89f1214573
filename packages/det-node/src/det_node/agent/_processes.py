"""Runs as processes of this node. Each rank and its children have their own session."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from det_core.errors import DetError
from det_core.support.threads import Failed

from ..environments import interpreter
from ..group import Command, Group, RankExit
from ..process import note_process
from ._foreground import ForegroundRuns
from ._fork_server import ForkServerClient
from ._frames import Ended, LogChunk, RunConnected, RunSpec
from ._relay import Relay

HOOK = "startup-hook.sh"
# The workers of a run end together, as they meet before.
_PATIENCE_SECONDS = 60.0
PASSES = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""Errors that keep a process from being started now, but may not later."""
# Descriptors for the logs and pipes of a process that is being started.
_SPARE = 10


class Processes:
    """Starts runs as processes, and calls `ended` once for each run.

    Runs are forked from a fork server where that is as good as a new interpreter. Their output goes
    to files, and that of foreground runs to `send`. Workers connect to `relay`. `coming` returns
    how many workers have yet to connect. `failed` is called with errors of threads.
    """

    def __init__(
        self,
        relay: Relay,
        ended: Callable[[Ended], None],
        coming: Callable[[], int],
        send: Callable[[LogChunk | RunConnected], None],
        failed: Failed,
    ) -> None:
        self.environ: Mapping[str, str] = os.environ
        self._relay, self._ended, self._coming = relay, ended, coming
        self._groups: dict[int, Group] = {}
        self._guards: dict[int, int] = {}
        self._foreground = ForegroundRuns(send, ended, failed)
        self._fork_server = ForkServerClient(ended, self._start_fresh, relay.connect_fork)

    def start(self, spec: RunSpec, moved: Callable[[RunSpec], RunSpec] = lambda spec: spec) -> None:
        """Start the processes of a run as `moved` to this node.

        A run that cannot be started has ended.
        """
        try:
            if spec.foreground:
                self._groups[spec.run_id] = self._foreground.start(spec, self.environ)
                return
            spec = moved(spec)
            spec.log_dir.mkdir(parents=True, exist_ok=True)
            self._find_descriptors()
            # The relay's messages are passed on before the end of the run is.
            kept = {**spec.variables, "DET_WORDS_KEPT": "1"}
            spec = self._relay.with_address(
                msgspec.structs.replace(spec, python=python_of(spec), variables=kept)
            )
            if spec.preload is None:
                self._start_fresh(spec)
            else:
                self._fork_server.start(spec, environ(self.environ, spec.python), spec.python)
        except Exception as error:
            passes = isinstance(error, MemoryError) or (
                isinstance(error, OSError) and error.errno in PASSES
            )
            why = _why(error)
            self._ended(
                Ended(spec.run_id, 1, unstarted=why)
                if passes
                else Ended(spec.run_id, 1, unstartable=why)
            )

    def signal(self, run: int, number: signal.Signals) -> None:
        """Signal the processes of a run and all that they started.

        Does nothing when they have ended.
        """
        self._fork_server.signal(run, number)
        if (group := self._groups.get(run)) is not None:
            group.signal(number)

    def end_runs(self) -> None:
        """Make scripts without a connection end, as if this process were gone."""
        for run in list(self._guards):
            # None means that the run has just ended.
            if (held := self._guards.pop(run, None)) is not None:
                os.close(held)

    def finish_output(self) -> None:
        """Send the last output of foreground runs. Every run has ended."""
        self._foreground.close()

    def close(self) -> None:
        """End the fork server. Every run has ended."""
        self._fork_server.close()

    def _find_descriptors(self) -> None:
        """Raise OSError where too few descriptors are left for a run and the workers to come."""
        with contextlib.ExitStack() as opened:
            for _ in range(_SPARE + self._coming()):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))

    def _start_fresh(self, spec: RunSpec) -> None:
        # Only this process holds the pipe's other end. A script without a connection sees by its
        # end that the agent is gone.
        guard, held = os.pipe()
        noted, unnoted = threading.Event(), list[str]()
        self._guards[spec.run_id] = held

        def ended(exits: list[RankExit]) -> None:
            noted.wait()
            if self._guards.pop(spec.run_id, None) is not None:
                os.close(held)
            self._groups.pop(spec.run_id, None)
            cause = first_failure(exits)
            self._ended(
                Ended(
                    spec.run_id,
                    cause.status,
                    spec.first_rank + cause.rank,
                    unstarted=unnoted[0] if unnoted else "",
                )
            )

        try:
            with contextlib.ExitStack() as logs:
                commands = [
                    self._command(spec, rank, guard, logs) for rank in range(len(spec.ranks))
                ]
                group = Group(commands, ended, patience=_PATIENCE_SECONDS)
        except BaseException:
            os.close(self._guards.pop(spec.run_id))
            raise
        finally:
            os.close(guard)
        self._groups[spec.run_id] = group
        try:
            for rank, pid in enumerate(group.pids, spec.first_rank):
                note_process(spec.log_dir, pid, rank)
        except OSError as error:
            # A later agent would not find the process.
            unnoted.append(error.strerror or str(error))
            group.signal(signal.SIGKILL)
        finally:
            noted.set()

    def _command(self, spec: RunSpec, rank: int, guard: int, logs: contextlib.ExitStack) -> Command:
        return Command(
            argv=command(spec, guard),
            env={**environ(self.environ, spec.python), **spec.variables, **spec.ranks[rank]},
            cwd=spec.code_dir,
            output=logs.enter_context(
                (spec.log_dir / f"rank-{spec.first_rank + rank}.log").open("ab")
            ),
            fds=() if spec.trial_class else (guard,),
        )


def _why(error: Exception) -> str:
    """Return what keeps a run from being started, and where."""
    machine = f"on {os.uname().nodename}"
    if isinstance(error, OSError) and error.strerror == os.strerror(errno.EAGAIN):
        return f"its user may have no more processes {machine} (ulimit -u)"
    if isinstance(error, OSError) and error.strerror:
        return (
            f"{error.strerror}: {error.filename} {machine}"
            if error.filename
            else f"{error.strerror} {machine}"
        )
    if isinstance(error, MemoryError):
        return f"its agent may have no more memory {machine} (ulimit -v)"
    return str(error) if isinstance(error, DetError) else f"{type(error).__name__}: {error}"


def first_failure(exits: list[RankExit]) -> RankExit:
    """Return the exit that made the others fail, or one of those that ended well.

    A process that was killed from outside comes first: no framework kills itself, and the others
    may end before the kill is known. Then follow processes that failed before the group ended the
    rest.
    """
    killed = [exit for exit in exits if exit.status == -signal.SIGKILL and not exit.killed]
    failed = [exit for exit in exits if exit.status]
    return [*killed, *sorted(failed, key=lambda exit: exit.killed), *exits][0]


def command(spec: RunSpec, guard: int) -> list[str]:
    """Return the argv of a run's process. A startup hook is sourced first.

    `-P` keeps the user's modules from shadowing those that det imports, such as `queue`.
    """
    if spec.launcher:
        argv = [*spec.launcher, "--trial", str(spec.entrypoint)]
    elif spec.trial_class:
        argv = [spec.python or sys.executable, "-P", "-m", "det_node.worker", str(spec.entrypoint)]
    else:
        script = (
            spec.entrypoint if isinstance(spec.entrypoint, str) else shlex.join(spec.entrypoint)
        )
        argv = [
            sys.executable,
            "-P",
            "-m",
            "det_node.guard",
            str(guard),
            "--",
            "/bin/sh",
            "-c",
            script,
        ]
    return hooked(argv, spec.code_dir)


def hooked(argv: list[str], code_dir: Path) -> list[str]:
    """Return a command that sources the startup hook first, where the code has one.

    The command has to be started in the code's directory.
    """
    if not (code_dir / HOOK).is_file():
        return argv
    return [
        "/bin/bash",
        "-c",
        # A hook that calls `exit` ends the run, too.
        f"trap 'echo det: {HOOK} ended the run with status $? >&2' EXIT; . ./{HOOK}; status=$?;"
        ' [ $status -eq 0 ] || exit $status; trap - EXIT; exec "$@"',
        "bash",
        *argv,
    ]


def python_of(spec: RunSpec) -> str:
    """Return the interpreter of a run. Raises DetError where this node does not have it."""
    python: str | None = spec.python or sys.executable
    if spec.environment:
        python = interpreter(Path(spec.variables["DET_ENVIRONMENTS"]), spec.environment)
    if python is None or not os.access(python, os.X_OK):
        machine = os.uname().nodename
        raise DetError(
            f"its environment has been removed from {machine}: resume the experiment, which makes"
            " it again"
            if spec.environment
            else (
                f"environment.python is {python}, and {machine} has no such interpreter; name one"
                " that it has"
            )
        )
    return python


def environ(base: Mapping[str, str], python: str = "") -> dict[str, str]:
    """Return the environment that all runs share.

    `python3` in an entrypoint is the run's interpreter.
    """
    path = os.pathsep.join(
        [str(Path(python or sys.executable).parent), base.get("PATH", os.defpath)]
    )
    return {**base, "PATH": path, "PYTHONUNBUFFERED": "1"}

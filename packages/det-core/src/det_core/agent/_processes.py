"""Runs as processes of this machine, each rank with its children in a session of its own."""

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

from ..environments import interpreter
from ..errors import DetError
from ..launch import Command, Group, RankExit
from ..process import note_process
from ._frames import Ended, RunSpec
from ._relay import Relay
from ._warm import WarmWorkers

HOOK = "startup-hook.sh"
_PATIENCE_SECONDS = 60.0  # workers end together: they meet before they do
PASSES = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""What keeps a process from being started now, and may not later."""
_SPARE = 10  # descriptors for a process that is being started, and logs


class Processes:
    """Starts runs, from a fork server where that is as good, with their output in files; tells `ended` of each once.

    Workers connect to `relay`; `coming` says how many of them still will.
    """

    def __init__(self, relay: Relay, ended: Callable[[Ended], None], coming: Callable[[], int]) -> None:
        self.environ: Mapping[str, str] = os.environ
        self._relay, self._tell, self._coming = relay, ended, coming
        self._groups: dict[int, Group] = {}
        self._guards: dict[int, int] = {}
        self._warm = WarmWorkers(ended, self._start_fresh, relay.door)

    def start(self, spec: RunSpec) -> None:
        """Start a run's processes; where they cannot be, it has ended."""
        try:
            spec.log_dir.mkdir(parents=True, exist_ok=True)
            self._find_descriptors()
            kept = {**spec.variables, "DET_WORDS_KEPT": "1"}  # the relay's are passed on before the end of the run is
            spec = self._relay.introduced(msgspec.structs.replace(spec, python=python_of(spec), variables=kept))
            if spec.warm is None:
                self._start_fresh(spec)
            else:
                self._warm.start(spec, environ(self.environ, spec.python), spec.python)
        except Exception as error:
            told = str(error) if isinstance(error, DetError) else f"{type(error).__name__}: {error}"
            why = (error.strerror if isinstance(error, OSError) else None) or told
            if isinstance(error, OSError) and error.errno in PASSES:
                self._tell(Ended(spec.run_id, 1, unstarted=why))
            else:
                self._tell(Ended(spec.run_id, 1, unstartable=why))

    def signal(self, run: int, number: signal.Signals) -> None:
        """Signal a run's processes and all that they started; harmless when they have ended."""
        self._warm.signal(run, number)
        if run in self._groups:
            self._groups[run].signal(number)

    def let_go(self) -> None:
        """Have scripts without a connection end, too, as if this process were gone."""
        for run in list(self._guards):
            if (held := self._guards.pop(run, None)) is not None:  # else it has just ended
                os.close(held)

    def close(self) -> None:
        """Release what is held; every run has ended."""
        self._warm.close()

    def _find_descriptors(self) -> None:
        """Raise OSError where those are not left that a run takes here, and those that are to come will."""
        with contextlib.ExitStack() as opened:
            for _ in range(_SPARE + self._coming()):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))

    def _start_fresh(self, spec: RunSpec) -> None:
        # The pipe's other end is held by this process alone: a script without a connection learns by its end that it is gone.
        guard, held = os.pipe()
        noted, unnoted = threading.Event(), list[str]()
        self._guards[spec.run_id] = held

        def ended(exits: list[RankExit]) -> None:
            noted.wait()
            if self._guards.pop(spec.run_id, None) is not None:
                os.close(held)
            self._groups.pop(spec.run_id, None)
            cause = first_failure(exits)
            self._tell(
                Ended(spec.run_id, cause.status, spec.first + cause.rank, unstarted=unnoted[0] if unnoted else "")
            )

        try:
            with contextlib.ExitStack() as logs:
                commands = [self._command(spec, rank, guard, logs) for rank in range(len(spec.ranks))]
                group = Group(commands, ended, patience=_PATIENCE_SECONDS)
        except BaseException:
            os.close(self._guards.pop(spec.run_id))
            raise
        finally:
            os.close(guard)
        self._groups[spec.run_id] = group
        try:
            for rank, pid in enumerate(group.pids, spec.first):
                note_process(spec.log_dir, pid, rank)
        except OSError as error:  # a later agent would not find it
            unnoted.append(error.strerror or str(error))
            group.signal(signal.SIGKILL)
        finally:
            noted.set()

    def _command(self, spec: RunSpec, rank: int, guard: int, logs: contextlib.ExitStack) -> Command:
        return Command(
            argv=command(spec, guard),
            env={**environ(self.environ, spec.python), **spec.variables, **spec.ranks[rank]},
            cwd=spec.code_dir,
            output=logs.enter_context((spec.log_dir / f"rank-{spec.first + rank}.log").open("ab")),
            fds=() if spec.trial_class else (guard,),
        )


def first_failure(exits: list[RankExit]) -> RankExit:
    """Return the exit that made the others fail, or one of those that ended well.

    A process that somebody killed comes first, as no framework does that to itself, and the others may end before it is
    known; then those that failed before the group ended the rest.
    """
    killed = [exit for exit in exits if exit.status == -signal.SIGKILL and not exit.killed]
    failed = [exit for exit in exits if exit.status]
    return [*killed, *sorted(failed, key=lambda exit: exit.killed), *exits][0]


def command(spec: RunSpec, guard: int) -> list[str]:
    """Return the argv of a run's process: the startup hook is sourced first where there is one.

    `-P` keeps the user's modules from taking the names of those that det imports, such as `queue`.
    """
    if spec.launcher:
        argv = [*spec.launcher, "--trial", str(spec.entrypoint)]
    elif spec.trial_class:
        argv = [spec.python or sys.executable, "-P", "-m", "det_core.worker", str(spec.entrypoint)]
    else:
        script = spec.entrypoint if isinstance(spec.entrypoint, str) else shlex.join(spec.entrypoint)
        argv = [sys.executable, "-P", "-m", "det_core.guard", str(guard), "--", "/bin/sh", "-c", script]
    return hooked(argv, spec.code_dir)


def hooked(argv: list[str], code_dir: Path) -> list[str]:
    """Return a command, to be started in the code's directory, as it begins after the startup hook, where there is one."""
    if not (code_dir / HOOK).is_file():
        return argv
    return ["/bin/bash", "-c", f'. ./{HOOK}; status=$?; [ $status -eq 0 ] || exit $status; exec "$@"', "bash", *argv]


def python_of(spec: RunSpec) -> str:
    """Return the interpreter of a run. Raises DetError where it is not here."""
    python: str | None = spec.python or sys.executable
    if spec.environment:
        python = interpreter(Path(spec.variables["DET_ENVIRONMENTS"]), spec.environment)
    if python is None or not os.access(python, os.X_OK):
        machine = os.uname().nodename
        raise DetError(
            f"its environment has been removed from {machine}: resume the experiment, which makes it again"
            if spec.environment
            else f"environment.python is {python}, and {machine} has no such interpreter; name one that it has"
        )
    return python


def environ(base: Mapping[str, str], python: str = "") -> dict[str, str]:
    """Return the environment of every run, without its own variables; `python3` in an entrypoint is its interpreter."""
    path = os.pathsep.join([str(Path(python or sys.executable).parent), base.get("PATH", os.defpath)])
    return {**base, "PATH": path, "PYTHONUNBUFFERED": "1"}

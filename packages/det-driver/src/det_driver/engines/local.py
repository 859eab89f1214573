"""Runs as processes of this machine, each rank with its children in a session of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
from pathlib import Path

from det_core.launch import Command, Group, RankExit
from det_core.process import note_process

from .base import Ended, Engine, RunSpec
from .warm import WarmWorkers

HOOK = "startup-hook.sh"
_PATIENCE_SECONDS = 60.0  # workers end together: they meet before they do


class LocalEngine(Engine):
    """Starts each run with its output in files, so that it outlives a driver that dies."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended)
        self._groups: dict[int, Group] = {}
        self._warm = WarmWorkers(ended, self._start_fresh)

    def start(self, spec: RunSpec) -> None:
        spec.log_dir.mkdir(parents=True, exist_ok=True)
        if spec.warm is None:
            self._start_fresh(spec)
        else:
            self._warm.start(spec, environ())

    def close(self) -> None:
        self._warm.close()

    def _start_fresh(self, spec: RunSpec) -> None:
        # The pipe's other end is held by this process alone: a script without a connection learns by its end that the driver died.
        guard, held = os.pipe()
        noted, unnoted = threading.Event(), list[str]()

        def ended(exits: list[RankExit]) -> None:
            noted.wait()
            os.close(held)
            self._groups.pop(spec.run_id, None)
            cause = first_failure(exits)
            self.ended(spec.run_id, cause.status, cause.rank, unstarted=unnoted[0] if unnoted else "")

        try:
            with contextlib.ExitStack() as logs:
                commands = [_command(spec, rank, guard, logs) for rank in range(len(spec.ranks))]
                group = Group(commands, ended, patience=_PATIENCE_SECONDS)
        except BaseException:
            os.close(held)
            raise
        finally:
            os.close(guard)
        self._groups[spec.run_id] = group
        try:
            for rank, pid in enumerate(group.pids):
                note_process(spec.log_dir, pid, rank)
        except OSError as error:  # a later driver would not find it
            unnoted.append(error.strerror or str(error))
            group.signal(signal.SIGKILL)
        finally:
            noted.set()

    def terminate(self, run_id: int) -> None:
        self._signal(run_id, signal.SIGTERM)

    def kill(self, run_id: int) -> None:
        self._signal(run_id, signal.SIGKILL)

    def _signal(self, run_id: int, number: signal.Signals) -> None:
        self._warm.signal(run_id, number)
        group = self._groups.get(run_id)
        if group is not None:
            group.signal(number)


def first_failure(exits: list[RankExit]) -> RankExit:
    """Return the exit that made the others fail, or one of those that ended well.

    A process that somebody killed comes first, as no framework does that to itself, and the others may end before it is
    known; then those that failed before the group ended the rest.
    """
    killed = [exit for exit in exits if exit.status == -signal.SIGKILL and not exit.killed]
    failed = [exit for exit in exits if exit.status]
    return [*killed, *sorted(failed, key=lambda exit: exit.killed), *exits][0]


def _command(spec: RunSpec, rank: int, guard: int, logs: contextlib.ExitStack) -> Command:
    return Command(
        argv=command(spec, guard),
        env={**environ(), **spec.variables, **spec.ranks[rank]},
        cwd=spec.code_dir,
        output=logs.enter_context((spec.log_dir / f"rank-{rank}.log").open("ab")),
        fds=() if spec.trial_class else (guard,),
    )


def command(spec: RunSpec, guard: int) -> list[str]:
    """Return the argv of a run's process: the startup hook is sourced first where there is one.

    `-P` keeps the user's modules from taking the names of those that det imports, such as `queue`.
    """
    if spec.hosts:
        launch = ["launch", "socket", "--hosts", spec.hosts, "--agent", spec.agent, "--trial", str(spec.entrypoint)]
        argv = [sys.executable, "-P", "-m", "det_driver.cli", *launch]
    elif spec.trial_class:
        argv = [sys.executable, "-P", "-m", "det_core.worker", str(spec.entrypoint)]
    else:
        script = spec.entrypoint if isinstance(spec.entrypoint, str) else shlex.join(spec.entrypoint)
        argv = [sys.executable, "-P", "-m", "det_core.guard", str(guard), "--", "/bin/sh", "-c", script]
    sourcing = f'. ./{HOOK}; status=$?; [ $status -eq 0 ] || exit $status; exec "$@"'
    return ["/bin/bash", "-c", sourcing, "bash", *argv] if (spec.code_dir / HOOK).is_file() else argv


def environ() -> dict[str, str]:
    """Return the environment of every run, without its own variables.

    The interpreter's own directory comes first in `PATH`, so that `python3` in an entrypoint is this one.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}

"""Runs as processes of this machine, each with its children in a session of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

from .base import Ended, Engine, RunSpec
from .process import end_group, note_process
from .warm import WarmWorkers

HOOK = "startup-hook.sh"


class LocalEngine(Engine):
    """Starts each run with its output in a file, so that it outlives a driver that dies."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
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
        try:
            with (spec.log_dir / "rank-0.log").open("ab") as log:
                process = subprocess.Popen(
                    command(spec, guard),
                    cwd=spec.code_dir,
                    env={**environ(), **spec.variables},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=() if spec.trial_class else (guard,),
                )
        finally:
            os.close(guard)
        self._processes[spec.run_id] = process
        note_process(spec.log_dir, process.pid)
        waiter = threading.Thread(target=self._wait, args=(spec.run_id, process, held), daemon=True, name="det-wait")
        waiter.start()

    def terminate(self, run_id: int) -> None:
        self._signal(run_id, signal.SIGTERM)

    def kill(self, run_id: int) -> None:
        self._signal(run_id, signal.SIGKILL)

    def _signal(self, run_id: int, number: signal.Signals) -> None:
        self._warm.signal(run_id, number)
        process = self._processes.get(run_id)
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _wait(self, run_id: int, process: subprocess.Popen[bytes], held: int) -> None:
        # waitid leaves the leader a zombie, so that its group's number cannot be taken by another while it is killed.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        end_group(process.pid)
        status = process.wait()
        os.close(held)
        self._processes.pop(run_id, None)
        self.ended(run_id, status)


def command(spec: RunSpec, guard: int) -> list[str]:
    """Return the argv of a run's process: the startup hook is sourced first where there is one.

    `-P` keeps the user's modules from taking the names of those that det imports, such as `queue`.
    """
    if spec.trial_class:
        argv = [sys.executable, "-P", "-m", "det_core.worker", str(spec.entrypoint)]
    else:
        script = spec.entrypoint if isinstance(spec.entrypoint, str) else shlex.join(spec.entrypoint)
        argv = [sys.executable, "-P", "-m", "det_core.engines.guard", str(guard), "--", "/bin/sh", "-c", script]
    if (spec.code_dir / HOOK).is_file():
        return [
            "/bin/bash",
            "-c",
            f'. ./{HOOK}; status=$?; [ $status -eq 0 ] || exit $status; exec "$@"',
            "bash",
            *argv,
        ]
    return argv


def environ() -> dict[str, str]:
    """Return the environment of every run, without its own variables."""
    return {**os.environ, "PATH": search_path(), "PYTHONUNBUFFERED": "1"}


def search_path() -> str:
    """Return `PATH` with the interpreter's own directory first, so that `python3` in an entrypoint is this one."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

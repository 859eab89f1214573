"""Runs as forks of a process that has imported their framework."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..forks import send_with
from ..process import end_group, is_running, noted_processes
from ._frames import Ended, RunSpec

PATIENCE_SECONDS = 5.0
_ORPHAN_SECONDS = 0.1


class WarmWorkers:
    """Starts runs through a fork server, which is started with the first.

    Runs that it cannot serve, now or ever, are handed to `fresh`. `door` gives the end of a connection for a run's worker.
    It serves one directory of code in one environment: what differs from the first run's, but for `DET_*`, has to come
    before imports.
    """

    def __init__(
        self, ended: Callable[[Ended], None], fresh: Callable[[RunSpec], None], door: Callable[[int], socket.socket]
    ) -> None:
        self._ended, self._fresh, self._door = ended, fresh, door
        self._lock = threading.RLock()
        self._runs: dict[int, RunSpec] = {}
        self._started: set[int] = set()
        self._orphans: dict[int, list[tuple[int, str]]] = {}  # the processes of runs whose server is gone
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._listener: threading.Thread | None = None
        self._key: object = None
        self._unfit = False

    def start(self, spec: RunSpec, environ: Mapping[str, str], python: str = "") -> None:
        """Start a run, in a fork where that is as good as a new interpreter (`python`, or this one) with `environ`."""
        key = (python, spec.warm, spec.code_dir, _fixed({**environ, **spec.variables}))
        with self._lock:
            fits = not self._unfit and (self._channel is None or key == self._key)
            if fits:
                if self._channel is None:
                    self._open(spec, environ, python)
                    self._key = key
                self._runs[spec.run_id] = spec
                request = {
                    "run": spec.run_id,
                    "entrypoint": str(spec.entrypoint),
                    "code_dir": str(spec.code_dir),
                    "log_dir": str(spec.log_dir),
                    "variables": dict(spec.variables),
                }
                with self._door(spec.run_id) as door:
                    self._tell(request, door.fileno())
        if not fits:
            self._fresh(spec)

    def signal(self, run_id: int, number: signal.Signals) -> None:
        """Signal a run's processes; harmless when they have ended."""
        with self._lock:
            for pid, birth in self._orphans.get(run_id, ()):
                if is_running(pid, birth):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, number)
            if run_id not in self._runs:
                return
            if number == signal.SIGKILL and run_id not in self._started and self._server is not None:
                self._server.kill()  # it is importing, and would hear of it when it is done
            else:
                self._tell({"run": run_id, "signal": int(number)})

    def close(self) -> None:
        """End the server; every run has ended or is to be killed."""
        with self._lock:
            channel, self._channel = self._channel, None
            if channel is not None:
                with contextlib.suppress(OSError):  # the server is gone already
                    channel.shutdown(socket.SHUT_WR)
        if self._server is None or self._listener is None or channel is None:
            return
        self._listener.join(PATIENCE_SECONDS)
        if self._listener.is_alive():
            self._server.kill()
            self._listener.join(PATIENCE_SECONDS)

    def _open(self, spec: RunSpec, environ: Mapping[str, str], python: str) -> None:
        server = (python or sys.executable, "-P", "-m", "det_core.forkserver")
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [*server, str(theirs.fileno()), str(spec.code_dir), *(spec.warm or ())],
                env={**environ, **dict(_fixed(spec.variables))},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        self._channel = ours
        self._listener = threading.Thread(
            target=self._listen, args=(self._server, ours), daemon=True, name="det-forkserver"
        )
        self._listener.start()

    def _tell(self, message: dict[str, Any], *descriptors: int) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # the listener finds out
                send_with(self._channel, json.dumps(message).encode() + b"\n", *descriptors)

    def _listen(self, server: subprocess.Popen[bytes], channel: socket.socket) -> None:
        with channel, channel.makefile("rb") as lines, contextlib.suppress(OSError):  # of a server that is gone
            for line in lines:
                self._hear(json.loads(line))
        server.wait()
        self._lost(channel)

    def _hear(self, message: dict[str, Any]) -> None:
        if "unfit" in message:
            with self._lock:
                self._unfit, specs = True, list(self._runs.values())
                self._runs.clear()
            for spec in specs:
                try:
                    self._fresh(spec)
                except OSError as error:
                    self._ended(Ended(spec.run_id, 1, unstarted=error.strerror or str(error)))
        elif "started" in message:
            with self._lock:
                self._started.add(message["started"])
        elif "ended" in message:
            with self._lock:
                self._runs.pop(message["ended"], None)
                self._started.discard(message["ended"])
            self._ended(Ended(message["ended"], message["status"], unstarted=message.get("unstarted", "")))

    def _lost(self, channel: socket.socket) -> None:
        """The server is gone; its workers go on, and are watched from here. The next run starts another server."""
        with self._lock:
            if self._channel is channel:
                self._channel = None
            specs = list(self._runs.values())
            self._runs.clear()
            self._started.clear()
            self._orphans |= {spec.run_id: noted_processes(spec.log_dir) for spec in specs}
        for spec in specs:
            threading.Thread(target=self._watch, args=(spec.run_id,), daemon=True, name="det-orphan").start()

    def _watch(self, run_id: int) -> None:
        """Wait for a worker without a server; how it ended only its last word says."""
        for pid, birth in self._orphans[run_id]:
            while is_running(pid, birth):
                time.sleep(_ORPHAN_SECONDS)
            end_group(pid)
        with self._lock:
            self._orphans.pop(run_id)
        self._ended(Ended(run_id, -signal.SIGKILL))


def _fixed(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in variables.items() if not name.startswith("DET_")))

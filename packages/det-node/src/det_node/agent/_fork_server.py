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
from functools import partial
from typing import Any

from det_core.support.threads import start_thread

from ..forks import send_with
from ..process import end_group, is_running, noted_processes
from ._frames import Ended, RunSpec

PATIENCE_SECONDS = 5.0
_ORPHAN_SECONDS = 0.1


class ForkServerClient:
    """Starts runs through a fork server, which is started with the first run.

    Runs that it cannot serve are handed to `fresh`. `connection` returns one end of a connection
    for a run's worker. The server serves the code directory, the imports, the interpreter and the
    variables of its first run, as these take effect before imports. Only `DET_*` may differ.
    """

    def __init__(
        self,
        ended: Callable[[Ended], None],
        fresh: Callable[[RunSpec], None],
        connection: Callable[[int], socket.socket],
    ) -> None:
        self._on_end, self._start_fresh, self._connect = ended, fresh, connection
        self._lock = threading.RLock()
        self._runs: dict[int, RunSpec] = {}
        self._started: set[int] = set()
        # The processes of runs whose server is gone.
        self._orphans: dict[int, list[tuple[int, str]]] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._listener: threading.Thread | None = None
        self._key: object = None
        self._unfit = False

    def start(self, spec: RunSpec, environ: Mapping[str, str], python: str = "") -> None:
        """Start a run with `environ`, as a fork where that is as good as a new interpreter.

        `python` is that interpreter, by default this process's.
        """
        key = (python, spec.preload, spec.code_dir, _fixed({**environ, **spec.variables}))
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
                try:
                    with self._connect(spec.run_id) as connection:
                        self._send(request, connection.fileno())
                except OSError:
                    del self._runs[spec.run_id]
                    raise
        if not fits:
            self._start_fresh(spec)

    def signal(self, run_id: int, number: signal.Signals) -> None:
        """Signal the processes of a run. Does nothing when they have ended."""
        with self._lock:
            for pid, birth in self._orphans.get(run_id, ()):
                if is_running(pid, birth):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, number)
            if run_id not in self._runs:
                return
            if (
                number == signal.SIGKILL
                and run_id not in self._started
                and self._server is not None
            ):
                # The server is importing, and would handle the signal only afterwards.
                self._server.kill()
            else:
                self._send({"run": run_id, "signal": int(number)})

    def close(self) -> None:
        """End the server. Every run has ended or is to be killed."""
        with self._lock:
            channel, self._channel = self._channel, None
            if channel is not None:
                # The server is gone already.
                with contextlib.suppress(OSError):
                    channel.shutdown(socket.SHUT_WR)
        if self._server is None or self._listener is None or channel is None:
            return
        self._listener.join(PATIENCE_SECONDS)
        if self._listener.is_alive():
            self._server.kill()
            self._listener.join(PATIENCE_SECONDS)

    def _open(self, spec: RunSpec, environ: Mapping[str, str], python: str) -> None:
        server = (python or sys.executable, "-P", "-m", "det_node.forkserver")
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [*server, str(theirs.fileno()), str(spec.code_dir), *(spec.preload or ())],
                env={**environ, **dict(_fixed(spec.variables))},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        self._channel = ours
        try:
            self._listener = start_thread(
                self._listen,
                self._server,
                ours,
                name="det-forkserver",
                failed=lambda error: self._handle_lost_server(ours),
            )
        except OSError:
            self._channel = None
            ours.close()
            self._server.kill()
            self._server.wait()
            raise

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        if self._channel is not None:
            # The listener reports that the server is gone.
            with contextlib.suppress(OSError):
                send_with(self._channel, json.dumps(message).encode() + b"\n", *descriptors)

    def _listen(self, server: subprocess.Popen[bytes], channel: socket.socket) -> None:
        # Reading from a server that is gone raises OSError.
        with channel, channel.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                self._handle(json.loads(line))
        server.wait()
        self._handle_lost_server(channel)

    def _handle(self, message: dict[str, Any]) -> None:
        if "unfit" in message:
            with self._lock:
                self._unfit, specs = True, list(self._runs.values())
                self._runs.clear()
            for spec in specs:
                try:
                    self._start_fresh(spec)
                except OSError as error:
                    self._on_end(Ended(spec.run_id, 1, unstarted=error.strerror or str(error)))
        elif "started" in message:
            with self._lock:
                self._started.add(message["started"])
        elif "ended" in message:
            with self._lock:
                self._runs.pop(message["ended"], None)
                self._started.discard(message["ended"])
            self._on_end(
                Ended(message["ended"], message["status"], unstarted=message.get("unstarted", ""))
            )

    def _handle_lost_server(self, channel: socket.socket) -> None:
        """Watch the workers of a server that is gone. The next run starts another server."""
        with self._lock:
            if self._channel is channel:
                self._channel = None
            specs = list(self._runs.values())
            self._runs.clear()
            self._started.clear()
            self._orphans |= {spec.run_id: noted_processes(spec.log_dir) for spec in specs}
        for spec in specs:
            ended = Ended(spec.run_id, -signal.SIGKILL)
            start_thread(
                self._watch, spec.run_id, name="det-orphan", failed=partial(self._report_end, ended)
            )

    def _report_end(self, ended: Ended, error: BaseException) -> None:
        self._on_end(ended)

    def _watch(self, run_id: int) -> None:
        """Wait for a worker without a server. Only its last message says how it ended."""
        for pid, birth in self._orphans[run_id]:
            while is_running(pid, birth):
                time.sleep(_ORPHAN_SECONDS)
            end_group(pid)
        with self._lock:
            self._orphans.pop(run_id)
        self._on_end(Ended(run_id, -signal.SIGKILL))


def _fixed(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted((name, value) for name, value in variables.items() if not name.startswith("DET_"))
    )

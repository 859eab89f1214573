"""Runs of one process each, whose output goes to the driver as it is written."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from det_core.support.threads import Failed, start_thread

from ..group import Command, Group, RankExit, cannot_start
from ..lines import read_lines
from ..process import kill_below
from ._frames import Ended, LogChunk, RunConnected, RunSpec

# A process in another session may hold the output of a run that has ended.
_DRAIN_SECONDS = 0.5
_ESTABLISHED, _LISTEN = "01", "0A"


class ForegroundRuns:
    """Starts foreground runs.

    `send` is called with their output, and waits where the driver reads slowly. `ended` is called
    once for each run, after its output.
    """

    def __init__(
        self,
        send: Callable[[LogChunk | RunConnected], None],
        ended: Callable[[Ended], None],
        failed: Failed,
    ) -> None:
        self._send, self._ended, self._failed = send, ended, failed
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        # The runs that have not met the others, by their groups, and the ports where they meet.
        self._coming: dict[Group, tuple[int, int]] = {}

    def start(self, spec: RunSpec, environ: Mapping[str, str]) -> Group:
        """Start a run in this node's `environ`. Raises DetError where it cannot be started."""
        assert not isinstance(spec.entrypoint, str)
        read, write = os.pipe()
        reader = start_thread(self._read, spec.run_id, read, name="det-output", failed=self._failed)
        self._readers.append(reader)

        def ended(exits: list[RankExit]) -> None:
            reader.join(_DRAIN_SECONDS)
            self._ended(Ended(spec.run_id, exits[0].status))

        try:
            command = Command(
                argv=spec.entrypoint,
                env={**spec.defaults, **environ, **spec.variables},
                cwd=spec.code_dir,
                output=write,
                leash=True,
            )
            group = Group([command], ended)
        except OSError as error:
            raise cannot_start(spec.entrypoint, spec.code_dir, error) from error
        finally:
            os.close(write)
        if spec.port is not None:
            self._watch(group, spec.run_id, spec.port)
        return group

    def close(self) -> None:
        """End what the runs have left, and send their last output. Every run has ended."""
        if self._readers:
            kill_below(os.getpid())
        for reader in self._readers:
            reader.join()

    def _read(self, run: int, output: int) -> None:
        """Send what a run and its children write, until all of them have ended."""
        at = 0
        try:
            for data in read_lines(output):
                self._send(LogChunk(run, "", at, data))
                at += len(data)
        finally:
            os.close(output)

    def _watch(self, group: Group, run: int, port: int) -> None:
        with self._lock:
            watching, self._coming[group] = bool(self._coming), (run, port)
        if not watching:
            start_thread(self._await_arrivals, name="det-arrivals", failed=self._failed)

    def _await_arrivals(self) -> None:
        """Report which runs have connected to meet the others."""
        pause = 0.1
        while True:
            time.sleep(pause)
            pause = min(1.0, pause * 1.2)
            with self._lock:
                coming = self._coming.copy()
            connected = arrived({group.pids[0]: port for group, (_, port) in coming.items()})
            over = [group for group in coming if group.pids[0] in connected or group.join(0)]
            for group in over:
                if group.pids[0] in connected:
                    self._send(RunConnected(coming[group][0]))
            with self._lock:
                for group in over:
                    del self._coming[group]
                if not self._coming:
                    return


def arrived(ports: Mapping[int, int]) -> set[int]:
    """Return which processes have connected to meet the others.

    `ports` maps the leader of each session to the port at which it meets.
    """
    sockets, found = {port: _sockets_at(port) for port in set(ports.values())}, set[int]()
    if not any(sockets.values()):
        return found
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # The process has ended, or belongs to another user.
        with contextlib.suppress(OSError):
            leader = os.getsid(int(pid))
            if leader in ports and not sockets[ports[leader]].isdisjoint(_links(pid)):
                found.add(leader)
    return found


def _sockets_at(port: int) -> set[str]:
    """Return the `/proc` links of sockets that listen at a port, or are connected from or to it."""
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

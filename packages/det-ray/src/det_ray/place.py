"""What is on a machine of the cluster for as long as a claim has it: an actor, which a driver finds by its name."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import get_current_placement_group, remove_placement_group

CHUNK = 1 << 16
"""Bytes in a call: what is larger Ray puts into its object store."""
_WAITS_SECONDS, _LINGERS_SECONDS, _LOOKS_SECONDS = 10.0, 5.0, 1.0
_WORDS = 4096


class Opened(NamedTuple):
    """The number of a stream, or none where the agent has not connected yet; or how the agent has ended, and what it said last."""

    stream: int = 0
    status: int | None = None
    words: str = ""


class Place:
    """Runs an agent, and carries the bytes of its connection for the driver that has asked last.

    It travels to the cluster by value: the machines there need det-core, and no package of this name. When the agent has
    ended, nothing of it is left, and neither is the placement group.
    """

    def __init__(self, argv: tuple[str, ...], start: bytes, node: int, nodes: int, environ: dict[str, str]) -> None:
        self._node, self._nodes = node, nodes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._socket: socket.socket | None = None
        self._stream = 0
        self._opening, self._known = threading.Lock(), threading.Event()
        told = json.loads(start) | {"driver": self._listener.getsockname()}
        self._name, self._note = told["name"], Path(told["directory"], f"{told['name']}-{node}.json")
        self._argv = (argv[0] or sys.executable, *argv[1:-1])
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it is there as long as this object is
        # What other machines reach this one by, unless whoever keeps it has said so.
        here = {"DET_ADDRESS": ray.util.get_node_ip_address(), **os.environ, **environ}
        self._agent = subprocess.Popen(
            [*self._argv, argv[-1], str(node)],
            env=here,
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )
        assert self._agent.stdin
        with suppress(OSError), self._agent.stdin as stdin:
            stdin.write(json.dumps(told).encode() + b"\n")
        threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._outlive, daemon=True).start()

    def open(self) -> Opened:
        """Have the agent connect again, as who was there before is gone: what that one has not read is lost, and told again."""
        with self._opening:
            self.close(self._stream)
            self._listener.settimeout(0)
            with suppress(BlockingIOError):
                while True:  # those that nobody has answered
                    self._listener.accept()[0].close()
            self._listener.settimeout(_LOOKS_SECONDS)
            deadline = time.monotonic() + _WAITS_SECONDS
            while self._agent.poll() is None and time.monotonic() < deadline:
                with suppress(TimeoutError):
                    self._socket = self._listener.accept()[0]
                    self._socket.settimeout(None)
                    self._stream += 1
                    return Opened(self._stream)
        if (status := self._agent.poll()) is None:
            return Opened()
        self._known.set()
        self._said.seek(max(self._said.seek(0, os.SEEK_END) - _WORDS, 0))
        return Opened(0, status, self._said.read().decode(errors="replace"))

    def read(self, stream: int) -> bytes | None:
        """Return what the agent says next; nothing when the stream has ended, None when there is nothing yet."""
        sock = self._of(stream)
        with suppress(OSError, ValueError):
            if sock is not None:
                return sock.recv(CHUNK) if select.select([sock], [], [], _WAITS_SECONDS)[0] else None
        return b""

    def write(self, stream: int, data: bytes) -> bool:
        """Say something to the agent, when it has room for it; return whether the stream goes on."""
        with suppress(OSError):
            if (sock := self._of(stream)) is not None:
                sock.sendall(data)
                return True
        return False

    def close(self, stream: int) -> None:
        """End a stream; harmless when it has ended."""
        if (sock := self._of(stream)) is not None:
            self._socket = None
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def end(self, *, at_once: bool) -> None:
        """Have the agent's runs save and end, or kill them."""
        subprocess.run([*self._argv, "--kill" if at_once else "--end", self._note], timeout=_WAITS_SECONDS, check=False)

    def _of(self, stream: int) -> socket.socket | None:
        return self._socket if stream == self._stream else None

    def _watch(self) -> None:
        """End the agent when its machine is about to be taken away."""
        here, noticed = ray.get_runtime_context().get_node_id(), False
        while self._agent.poll() is None and not noticed:
            time.sleep(_LOOKS_SECONDS)
            if noticed := here in draining():
                self._agent.terminate()

    def _outlive(self) -> None:
        """Wait for the agent's end, and for a driver to know of it; the last place of a claim gives its machines back.

        Where the agent was killed, its runs may go on for the time of the lease, and it is for a driver to see to that.
        """
        status = self._agent.wait()
        self._known.wait(_LINGERS_SECONDS)
        time.sleep(_LOOKS_SECONDS / 2)  # as what was said of it is on its way
        while self._are_there(range(self._node + 1, self._nodes)):
            time.sleep(_LOOKS_SECONDS)
        if (status == 0 or not self._stream) and not self._are_there(range(self._node)):
            remove_placement_group(get_current_placement_group())
        ray.kill(ray.get_runtime_context().current_actor)

    def _are_there(self, nodes: Any) -> bool:
        there = set(ray.util.list_named_actors())
        return any(place_name(self._name, node) in there for node in nodes)


def place_name(claim: str, node: int) -> str:
    """Return the name of the actor on a machine of a claim."""
    return f"{claim}/{node}"


def draining() -> set[str]:
    """Return the ids of the machines that Ray is about to give up.

    Ray 2.60 says so to its own libraries only. Where it does not any more, machines go without notice, and trials lose what they
    have not saved.
    """
    with suppress(ImportError, AttributeError):
        from ray._private.state import state

        return set(state.get_draining_nodes())
    return set()

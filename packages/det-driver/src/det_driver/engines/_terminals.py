"""Serves the terminals of runs on other nodes on this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from det_core.support.threads import start_thread
from det_node.agent import OpenTerminal, TerminalData, TerminalLink
from det_node.terminal import SOCKET, await_client

Send = Callable[[OpenTerminal | TerminalData], object]


class NodeTerminals:
    """Has a socket for each terminal that an agent announces, as if its run were here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[int, TerminalLink] = {}
        self._opening: set[int] = set()

    def serve(self, run: int, log_dir: Path, send: Send) -> None:
        """Wait for a client of the terminal of a run in a thread. `send` sends to its agent."""
        with self._lock:
            if run in self._opening:
                return
            self._opening.add(run)
        start_thread(self._await, run, log_dir / "scratch" / SOCKET, send, name="det-terminal")

    def _await(self, run: int, place: Path, send: Send) -> None:
        try:
            connected = await_client(place)
        finally:
            with self._lock:
                self._opening.discard(run)
        # Without a client the server on the node ends its program, too.
        if connected is not None:
            with self._lock:
                link = self._links[run] = TerminalLink(run, connected, send)
            # What is typed before the agent has connected would be lost.
            send(OpenTerminal(run))
            link.start()

    def take(self, data: TerminalData) -> None:
        """Pass on what a program has written, or note what it has taken."""
        with self._lock:
            link = self._links.get(data.run)
        if link is not None:
            link.take(data)

    def close(self, runs: Iterable[int] | None = None) -> None:
        """Close the terminals of runs whose agent is gone, by default of all."""
        with self._lock:
            closed = [
                self._links.pop(run)
                for run in (list(self._links) if runs is None else runs)
                if run in self._links
            ]
        for link in closed:
            link.close()

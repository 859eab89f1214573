"""Finds the terminals of shells that run as experiments."""

from __future__ import annotations

from pathlib import Path

from det_node.task import SHELL
from det_node.terminal import SOCKET, connect_terminal

from .store import Store

__all__ = ["SHELL", "connect_terminal", "find_terminal"]


def find_terminal(store: Store, experiment: int) -> Path | None:
    """Return the socket of the terminal of a shell, or None if the shell has none now."""
    for trial in store.trials.list(experiment):
        for run in store.runs.list(trial.id):
            if (socket := run.log_dir / "scratch" / SOCKET).is_socket():
                return socket
    return None

"""Allocation requests, allocations, and how to start an agent as a process of this host."""

from __future__ import annotations

import enum
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AllocationRequest:
    """An allocation request: `nodes` nodes with `slots` devices each, all at once or none.

    `name` is unique forever and identifies the allocation.
    """

    name: str
    slots: int
    nodes: int = 1


@dataclass(frozen=True, kw_only=True)
class AgentCommand:
    """The command that runs once on each node of an allocation and is never restarted.

    `start` is secret. It must reach the process by its standard input (the last item of `argv` is
    `-`) or by a file that only its owner may read.
    """

    argv: tuple[str, ...]
    start: bytes


class AllocationState(enum.Enum):
    """The state of an allocation."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The state of an allocation request at its engine.

    `reason` is shown to users, such as why it waits. `native` is the engine's own id.
    """

    name: str
    state: AllocationState
    nodes: int = 1
    native: str = ""
    reason: str = ""
    gone: Mapping[int, bool] = field(default_factory=dict)
    """The nodes whose agents have ended, and whether their processes have certainly all ended."""


def spawn(argv: Sequence[str], start: bytes, log: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start an agent, or a command that reaches one, as a process that outlives this one.

    `start` is written to its standard input. `options` are further ones of `subprocess.Popen`.
    """
    with open(log, "ab") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **{"cwd": "/", **options},
        )
    assert process.stdin
    # An error means that the process has ended, which its engine notices.
    with suppress(OSError), process.stdin:
        process.stdin.write(start)
    return process


def last_line(log: str) -> str:
    """Return the last line of a log, and the path of the log."""
    lines = Path(log).read_text(errors="replace").split("\n") if Path(log).exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"the last one's words: {last} ({log} has all)"

"""What an engine is asked for, and what has become of it; how an agent is started that is a process of this machine."""

from __future__ import annotations

import enum
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`nodes` machines at once or none, each with `slots` devices; `name` is unique for ever, and found again by it."""

    name: str
    slots: int
    nodes: int = 1


@dataclass(frozen=True, kw_only=True)
class AgentCommand:
    """What runs once on each machine of a claim and is never restarted; what `start` says is secret.

    It is to reach the process by its standard input (`-` is the last word of `argv`), or by a file of the owner's alone.
    """

    argv: tuple[str, ...]
    start: bytes


class Standing(enum.Enum):
    """What has become of a claim."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class Granted:
    """A claim as its engine has it, with how many machines; `reason` is shown to people, such as why it waits."""

    name: str
    standing: Standing
    nodes: int = 1
    native: str = ""
    reason: str = ""
    gone: Mapping[int, bool] = field(default_factory=dict)
    """The machines of it whose agents have ended, and whether it is certain that nothing of them goes on."""


def spawn(argv: Sequence[str], start: bytes, log: str) -> subprocess.Popen[bytes]:
    """Start what is or reaches an agent as a process that outlives this one, and tell it what is secret."""
    with open(log, "ab") as said:
        process = subprocess.Popen(
            argv, cwd="/", stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
        )
    assert process.stdin
    with suppress(OSError), process.stdin:  # it has ended, which is found out
        process.stdin.write(start)
    return process


def last_line(log: str) -> str:
    """Return what a log says last, and where it is."""
    lines = Path(log).read_text(errors="replace").split("\n") if Path(log).exists() else []
    said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"the last one's words: {said} ({log} has all)"

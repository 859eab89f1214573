"""What an agent notes of itself on its machine, by which it is found, and ended."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..process import born, is_running, kill_below

NOTE = "agent.json"


def note_agent(file: Path, name: str) -> None:
    """Note this process as the agent of a claim."""
    temporary = file.with_name(f".{file.name}")
    temporary.write_text(json.dumps({"pid": os.getpid(), "born": born(os.getpid()), "name": name}))
    temporary.replace(file)


def find(note: Path) -> dict[str, Any] | None:
    """Return what an agent on this machine has noted of itself in this file; None where it runs no more."""
    try:
        found: dict[str, Any] = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return found if is_running(found["pid"], found["born"]) else None


def end(note: Path, *, at_once: bool) -> None:
    """Send an agent SIGTERM, and kill its runs before with `at_once`; harmless where it runs no more."""
    if found := find(note):
        with suppress(ProcessLookupError):
            if at_once:
                kill_below(found["pid"])
            os.kill(found["pid"], signal.SIGTERM)

"""The note of an agent on its node, by which it is found and ended."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from det_core.support.paths import read_regular

from ..process import is_running, kill_below, process_identity

NOTE = "agent.json"


def note_agent(file: Path, name: str) -> None:
    """Write the note of this process as the agent of an allocation."""
    temporary = file.with_name(f".{file.name}")
    temporary.write_text(
        json.dumps({"pid": os.getpid(), "born": process_identity(os.getpid()), "name": name})
    )
    temporary.replace(file)


def find(note: Path) -> dict[str, Any] | None:
    """Return what an agent has noted in this file, or None where it does not run any more."""
    try:
        found: dict[str, Any] = json.loads(read_regular(note))
        return found if is_running(found["pid"], found["born"]) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def find_driver(note: Path) -> Path:
    """Return the file in which an agent on another machine than its driver finds its next driver.

    A driver writes it if it has another address than the one that started the agent.
    """
    return note.with_suffix(".driver")


def name_driver(note: Path, host: str, port: int) -> None:
    """Tell an agent where its driver listens."""
    file = find_driver(note)
    temporary = file.with_name(f".{file.name}")
    temporary.write_text(json.dumps([host, port]))
    temporary.replace(file)


def end(note: Path, *, at_once: bool) -> None:
    """Send SIGTERM to an agent. With `at_once`, kill its runs before.

    Does nothing where the agent does not run any more.
    """
    if found := find(note):
        with suppress(ProcessLookupError):
            if at_once:
                kill_below(found["pid"])
            os.kill(found["pid"], signal.SIGTERM)

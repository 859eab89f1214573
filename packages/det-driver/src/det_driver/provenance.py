"""Where an experiment comes from: its code's commit and what differs from it, interpreter, packages, machine, devices."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_core.config import ExperimentConfig, without_secrets
from det_core.origin import origin

FILE = "provenance.json"
_LONGEST = 1_000_000
_SECONDS = 10.0


def gather(code: Path | None, config: ExperimentConfig) -> dict[str, Any]:
    """Return what is known here and now, plain JSON; the configuration's secrets are masked, a remote's address is not kept."""
    found = origin()
    if code is not None and (commit := _lines("git", "-C", str(code), "rev-parse", "HEAD")):
        changed = "\n".join(_lines("git", "-C", str(code), "diff", "HEAD", "--no-ext-diff", "--", "."))
        found["git"] = {"commit": commit[0], "dirty": bool(changed)}
        if changed:
            found["git"]["diff"] = without_secrets(changed[:_LONGEST], config)
    return found


def write(directory: Path, found: Mapping[str, Any]) -> None:
    """Keep it in an experiment's directory, which exports take with them."""
    file = directory / FILE
    file.touch(mode=0o600)
    file.write_text(json.dumps(found, indent=1), encoding="utf-8")


def read(directory: Path) -> dict[str, Any]:
    """Return what was kept of an experiment; nothing for one that was made before this was kept."""
    try:
        found: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def commit(found: Mapping[str, Any]) -> str | None:
    """Return the commit of the code, with a + where it is not as committed; None where it is in no repository."""
    git = found.get("git")
    return f"{git['commit']}{'+' if git['dirty'] else ''}" if git else None


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Say what of two origins is not the same, packages by their versions; what only names a machine comes last."""
    theirs, mine = before.get("packages", {}), after.get("packages", {})
    changed = [name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name)]
    said = [f"{name} {mine.get(name, 'gone')} (was {theirs.get(name, 'not there')})" for name in changed]
    for key in ("python", "os", "cpu", "devices", "host"):
        was, now = (", ".join(each) if isinstance(each, list) else each for each in (before.get(key), after.get(key)))
        said += [f"{key} {now or 'none'} (was {was or 'none'})"] if was != now else []
    return said


def _lines(*command: str) -> list[str]:
    """Return what a command prints; nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []

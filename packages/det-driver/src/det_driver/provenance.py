"""Where an experiment comes from: its code's commit and what differs from it, interpreter, packages, machine, devices."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_core.config import ExperimentConfig, without_secrets

FILE = "provenance.json"
_LONGEST = 1_000_000
_SECONDS = 10.0


def gather(code: Path | None, config: ExperimentConfig) -> dict[str, Any]:
    """Return what is known here and now, plain JSON; the configuration's secrets are masked, a remote's address is not kept."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": packages(),
        "host": platform.node(),
        "os": platform.platform(),
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "devices": _lines("nvidia-smi", "--query-gpu=name,uuid,driver_version", "--format=csv,noheader"),
    }
    if code is not None and (commit := _lines("git", "-C", str(code), "rev-parse", "HEAD")):
        changed = "\n".join(_lines("git", "-C", str(code), "diff", "HEAD", "--no-ext-diff", "--", "."))
        found["git"] = {"commit": commit[0], "dirty": bool(changed)}
        if changed:
            found["git"]["diff"] = without_secrets(changed[:_LONGEST], config)
    return found


def packages() -> dict[str, str]:
    """Return the versions of the installed distributions, by the names of their folders: to read each takes long."""
    found: dict[str, str] = {}
    for place in sys.path:
        for folder in os.listdir(place or ".") if os.path.isdir(place or ".") else ():
            stem, _, kind = folder.rpartition(".")
            if kind in ("dist-info", "egg-info"):
                name, _, version = stem.partition("-")
                found.setdefault(name.replace("_", "-"), version)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


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


def _lines(*command: str) -> list[str]:
    """Return what a command prints; nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []

"""Where a run comes from: interpreter, packages, machine, devices. It is told once for each run, and cheap to find."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_NVIDIA = Path("/proc/driver/nvidia")


def origin() -> dict[str, Any]:
    """Return what this process runs in, plain JSON. Only the devices are those of this moment."""
    return {**_interpreter(), "host": platform.node(), "devices": devices()}


def brief() -> dict[str, Any]:
    """Return the part that goes with each checkpoint."""
    return {"host": platform.node(), "packages": _packages(), "devices": devices()}


@cache
def _packages() -> str:
    return digest(_interpreter()["packages"])


@cache
def _interpreter() -> dict[str, Any]:
    """Return what no fork of this process changes."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": packages(),
        "os": platform.platform(),
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
    }


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


def devices(nvidia: Path = _NVIDIA) -> list[str]:
    """Return the GPUs of NVIDIA's driver, each with its UUID, and the version of that driver, as it tells of them in /proc."""
    if not os.path.isdir(nvidia):
        return []
    files = sorted(nvidia.glob("gpus/*/information"))
    driver = _fact(nvidia / "version", "NVRM version")
    return [f"{_fact(file, 'Model')}, {_fact(file, 'GPU UUID')}, driver {driver}" for file in files]


def digest(found: Mapping[str, Any]) -> str:
    """Return what is the same for the same origin."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def _fact(file: Path, name: str) -> str:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((" ".join(line.partition(":")[2].split()) for line in lines if line.startswith(name)), "")

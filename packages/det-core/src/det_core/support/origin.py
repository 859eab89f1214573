"""Finds where a run comes from: interpreter, packages, machine, devices. It is cheap to find.

It is reported once for each run.
"""

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
THREADS = {"OMP_NUM_THREADS": "threads", "TF_NUM_INTRAOP_THREADS": "tensorflow_threads"}
"""The variables that set the number of compute threads, and the key of each in an origin.

TensorFlow reads its own variable only.
"""


def origin() -> dict[str, Any]:
    """Return the environment of this process as plain JSON.

    Devices and threads are read at each call.
    """
    found = {**_interpreter(), "host": platform.node(), "devices": devices()}
    set_here = ((key, os.environ.get(variable)) for variable, key in THREADS.items())
    return found | {key: threads for key, threads in set_here if threads}


def brief() -> dict[str, Any]:
    """Return the part of the origin that is stored in each checkpoint."""
    return {"host": platform.node(), "packages": _packages(), "devices": devices()}


@cache
def _packages() -> str:
    return digest(_interpreter()["packages"])


@cache
def _interpreter() -> dict[str, Any]:
    """Return the facts that no fork of this process changes."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": packages(),
        "os": platform.platform(),
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def packages() -> dict[str, str]:
    """Return the versions of the installed distributions, by the names of their folders.

    Reading the metadata of each would take long.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        for folder in os.listdir(place or ".") if os.path.isdir(place or ".") else ():
            stem, _, kind = folder.rpartition(".")
            if kind in ("dist-info", "egg-info"):
                name, _, version = stem.partition("-")
                found.setdefault(name.replace("_", "-"), version)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def devices(nvidia: Path = _NVIDIA) -> list[str]:
    """Return the GPUs that NVIDIA's driver lists in /proc, each with UUID and driver version."""
    if not os.path.isdir(nvidia):
        return []
    files = sorted(nvidia.glob("gpus/*/information"))
    driver = _fact(nvidia / "version", "NVRM version")
    return [f"{_fact(file, 'Model')}, {_fact(file, 'GPU UUID')}, driver {driver}" for file in files]


def digest(found: Mapping[str, Any]) -> str:
    """Return a digest of an origin. Equal origins have equal digests."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def _fact(file: Path, name: str) -> str:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next(
        (" ".join(line.partition(":")[2].split()) for line in lines if line.startswith(name)), ""
    )

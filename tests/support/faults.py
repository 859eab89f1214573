"""Builds the library that fails or kills a process at one of its writes (`faults.c`)."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build_faults(place: Path) -> Path:
    """Return the library, for LD_PRELOAD."""
    library = place / "faults.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library

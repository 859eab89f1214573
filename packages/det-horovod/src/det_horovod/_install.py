"""Puts a wheel of Horovod into this environment."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from det_core.errors import DetError

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def commands(wheel: Path) -> tuple[list[str], ...]:
    """Return what installs a wheel, whatever Horovod is there, and of its requirements those that are missing."""
    return ([*_PIP, "--no-deps", "--force-reinstall", str(wheel)], [*_PIP, str(wheel)])


def install(wheel: Path) -> bool:
    """Install a wheel; tell whether that was necessary. Raises DetError with what pip says."""
    if is_installed(wheel):
        return False
    for command in commands(wheel):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise DetError(f"{done.stdout.strip()}\npip could not install {wheel} (status {done.returncode})")
    return True


def is_installed(wheel: Path) -> bool:
    """Tell whether this very wheel is installed here, by its digest."""
    try:
        origin = metadata.distribution("horovod").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    known = json.loads(origin or "{}").get("archive_info", {}).get("hashes", {}).get("sha256")
    return bool(known == hashlib.sha256(wheel.read_bytes()).hexdigest())

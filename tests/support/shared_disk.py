"""A file system that several machines have.

What one has read is not what another one has, and only locks are common.

Each machine has a mount of its own of a directory. As with NFS, nothing but files and locks goes
from one to another: no memory (SQLite's log written ahead fails there), and, with `locks` left out,
not even locks.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPTIONS = "direct_io,attr_timeout=0,entry_timeout=0,negative_timeout=0"


def why_no_shared_disk() -> str:
    """Say why there can be none here, or nothing where there can."""
    if shutil.which("bindfs") is None:
        return "bindfs is not installed (package bindfs)"
    return "" if Path("/dev/fuse").exists() else "there is no /dev/fuse"


def mounting(disk: Path, place: Path, *, locks: bool = True) -> str:
    """Return the command by which a machine has a disk in a place."""
    forwarding = ["--enable-lock-forwarding"] if locks else []
    return shlex.join(
        ["bindfs", "--multithreaded", *forwarding, "-o", _OPTIONS, str(disk), str(place)]
    )


@contextmanager
def mounted(disk: Path, place: Path) -> Iterator[None]:
    """Have it on this machine."""
    subprocess.run(mounting(disk, place), shell=True, check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=20)

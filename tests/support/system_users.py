"""System users of this machine that tests make and remove, and an interpreter that they can use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_useradd = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("useradd") is None, reason="needs root, to add users"
)


@dataclass(frozen=True)
class SystemUser:
    """A user with a home directory that only they can enter."""

    name: str
    uid: int
    home: Path


@contextmanager
def system_user(beginning: str, place: Path) -> Iterator[SystemUser]:
    """Add a user whose name begins so, with a home directory in `place`, and remove it."""
    name = f"{beginning}{os.getpid()}"
    home = place / name
    subprocess.run(["useradd", "--no-create-home", "--home-dir", home, name], check=True)
    try:
        uid = int(subprocess.run(["id", "-u", name], check=True, capture_output=True).stdout)
        home.mkdir(mode=0o700)
        shutil.chown(home, name, name)
        yield SystemUser(name, uid, home)
        _end_processes(uid)
    finally:
        subprocess.run(["userdel", name], check=True)


def _end_processes(uid: int) -> None:
    """End what runs as a user whom this process has added."""
    deadline = time.monotonic() + 30
    while pids := processes_of(uid):
        assert time.monotonic() < deadline, pids
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def processes_of(uid: int) -> list[int]:
    """Return the processes of a user that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(entry.name)] if state != "Z" else []
    return found


def make_interpreter(place: Path) -> Path:
    """Return an interpreter with the packages of this one that all users can execute.

    It is this one if they can. Else it is made in `place` from one of the same version.
    """
    if _is_usable(Path(sys.executable)):
        return Path(sys.executable)
    base = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    if not base.exists() or not _is_usable(base):
        pytest.skip(f"other users cannot execute {sys.executable}")
    subprocess.run([base, "-m", "venv", "--without-pip", place / "python"], check=True)
    [packages] = (place / "python" / "lib").glob("python3.*/site-packages")
    ours = sysconfig.get_path("purelib")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    made = place / "python" / "bin" / "python"
    if not _is_usable(made, "import det_node.agent"):
        pytest.skip(f"other users cannot read {ours}")
    return made


def _is_usable(python: Path, code: str = "import json") -> bool:
    nobody = {"user": 65534, "group": 65534, "extra_groups": (), "cwd": "/"}
    with suppress(OSError):
        return not subprocess.run([python, "-P", "-c", code], check=False, **nobody).returncode
    return False

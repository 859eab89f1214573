"""Another user of this machine, which root can be in a process.

What it tries, and what it may try it on.
"""

from __future__ import annotations

import contextlib
import encodings.idna
import encodings.latin_1
import json
import os
import pickle
import shutil
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OTHER = 65534
"""The user id and group id of nobody."""
needs_other = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/proc/net/tcp").exists(),
    reason="needs root on Linux, to be another user too",
)
SECONDS = 60


class _Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def openers(ran: Path) -> list[bytes]:
    """Return what a stranger may say to a port of Python programs.

    What is run of it makes the file `ran`.
    """
    spoils = pickle.dumps(_Runs(str(ran)))
    return [
        spoils,
        len(spoils).to_bytes(8, "big") + spoils,
        len(spoils).to_bytes(4, "little") + spoils,
        b"\0" * 4096,
    ]


def as_other(act: Callable[[], Any]) -> Any:
    """Return what a function returns that another user runs, in a fork, within a minute.

    What it imports has been imported before: that user may not read the interpreter's files.
    """
    with begun_as_other(act) as wait:
        return wait()


@contextmanager
def begun_as_other(act: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Have another user run a function in a fork meanwhile.

    Give what waits for it, and returns what it returned.
    """
    assert encodings.idna
    assert encodings.latin_1
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            # Of one session, anyone may continue processes that stopped.
            os.setsid()
            signal.alarm(SECONDS)
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            with os.fdopen(write, "w") as file:
                json.dump(act(), file)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    ended = False

    def wait() -> Any:
        nonlocal ended
        with os.fdopen(read) as file:
            text = file.read()
        ended = True
        assert os.waitpid(child, 0)[1] == 0
        return json.loads(text)

    try:
        yield wait
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@contextmanager
def entered_by_all() -> Iterator[Path]:
    """Give a directory that every user can enter."""
    place = Path(tempfile.mkdtemp(prefix="det-two-users-"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def processes_with(variable: str) -> list[int]:
    """Return the processes that have a variable, NAME=VALUE, in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and f"{variable}\0".encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
    return found


def ports_of(processes: Iterable[int]) -> list[int]:
    """Return the ports that processes listen on."""
    inodes = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(each).removeprefix("socket:[").removesuffix("]"))
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return sorted(
        {int(of[1].rpartition(":")[2], 16) for of in lines if of[3] == "0A" and of[9] in inodes}
    )


def command_lines() -> list[str]:
    """Return the command lines of all processes."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
    return found


def read_of_processes(processes: Iterable[int]) -> list[str]:
    """Return what can be opened of processes, and which can be sent a signal or changed."""
    found = []
    for pid in processes:
        for name in (
            "environ",
            "mem",
            "maps",
            "stack",
            "syscall",
            "fd/0",
            "fd/1",
            "cwd/.",
            "root/.",
            "exe",
        ):
            with contextlib.suppress(OSError):
                os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
                found.append(f"{pid} {name}")
        for name in ("oom_score_adj", "comm", "clear_refs"):
            with contextlib.suppress(OSError):
                os.close(os.open(f"/proc/{pid}/{name}", os.O_WRONLY))
                found.append(f"{pid} {name} is written")
        for number in (0, signal.SIGCONT):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                found.append(f"{pid} is sent {number}")
    return found


def changed_paths(paths: Iterable[str]) -> list[str]:
    """Return what can be done to files and directories.

    Read, made in, written, renamed, removed, replaced by a link.
    """
    found = []
    for path in paths:
        acts: dict[str, Callable[[], Any]] = {
            "reads": lambda path=path: os.close(os.open(path, os.O_RDONLY)),
            "lists": lambda path=path: os.listdir(path),
            "makes in": lambda path=path: Path(path, "made").touch(),
            "writes": lambda path=path: os.close(os.open(path, os.O_WRONLY)),
            "renames": lambda path=path: os.rename(path, f"{path}.away"),
            "removes": lambda path=path: os.unlink(path),
            "replaces": lambda path=path: os.symlink("/etc/passwd", path),
            "changes the mode of": lambda path=path: os.chmod(path, 0o777),
        }
        for name, act in acts.items():
            with contextlib.suppress(OSError):
                act()
                found.append(f"{name} {path}")
    return found


def taken_ports(ports: Iterable[int]) -> list[str]:
    """Return at which addresses ports can be listened on that somebody else listens on already."""
    found = []
    for port in ports:
        for address in ("127.0.0.1", "0.0.0.0", ""):
            with socket.socket() as sock, contextlib.suppress(OSError):
                for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                    sock.setsockopt(socket.SOL_SOCKET, option, 1)
                sock.bind((address, port))
                sock.listen()
                found.append(f"{address}:{port}")
    return found


def answers_of(ports: Iterable[int], said: Iterable[bytes], patience: float = 1.0) -> list[str]:
    """Return what ports answer, each to each of what is said.

    Ports that have gone are passed over.
    """
    found = []
    for port in ports:
        for each in said:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=5) as to,
            ):
                to.settimeout(patience)
                to.sendall(each)
                heard = b""
                with contextlib.suppress(OSError):
                    while more := to.recv(65536):
                        heard += more
                found.append(heard.decode("latin1"))
    return found


def _paths_below(folder: Path) -> list[str]:
    """Return what is below a directory now. Directories that vanish meanwhile are left out."""
    return [
        os.path.join(place, name)
        for place, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]


def race(scratch: Path, told: Path, until: Path, said: list[bytes]) -> dict[str, list[str]]:
    """Try, until a file is there, all of the above on what appears.

    It appears in a directory, and among the numbers that `told` lists.

    `told` has lines of processes, and of ports after a minus. Each is tried once and at once.
    """
    seen: set[str] = set()
    heard: list[str] = []
    done: list[str] = []
    began = time.monotonic()
    while not until.exists() and time.monotonic() - began < SECONDS - 10:
        for path in _paths_below(scratch):
            # Temporary files vanish at any moment. One of one's own says nothing.
            with contextlib.suppress(FileNotFoundError):
                if path not in seen and os.lstat(path).st_uid != OTHER:
                    seen.add(path)
                    done += changed_paths([path])
        for line in told.read_text().split():
            if line not in seen:
                seen.add(line)
                if line.startswith("-"):
                    done += taken_ports([int(line[1:])])
                    heard += answers_of([int(line[1:])], said, 0.1)
                else:
                    done += read_of_processes([int(line)])
    return {"done": done, "heard": heard, "seen": sorted(seen)}

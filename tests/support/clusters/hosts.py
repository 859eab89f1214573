"""Hosts as network namespaces of this machine, and what every cluster on them has."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
_NUMBERS = count()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@dataclass(frozen=True)
class Network:
    """Hosts whose names are their addresses.

    Also those of the namespaces, for `ip netns exec NAME`.
    """

    switch: str
    names: list[str]

    def cut(self, name: str) -> None:
        """Cut the cable of a host: packets vanish, and nobody is told."""
        ip("-n", self.switch, "link", "set", self._cable(name), "down")

    def mend(self, name: str) -> None:
        ip("-n", self.switch, "link", "set", self._cable(name), "up")

    def _cable(self, name: str) -> str:
        return f"p{self.names.index(name)}"


def why_no_network() -> str:
    """Say why there can be no hosts here, or nothing where there can."""
    if shutil.which("ip") is None:
        return "there is no ip command (package iproute2)"
    name = f"det-probe-{os.getpid()}"
    made = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True, check=False, timeout=20
    )
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False, timeout=20)
    return ""


@contextmanager
def joined(hosts: int) -> Iterator[Network]:
    """Make hosts and their switch, and take them away again."""
    net = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
    while any(Path(f"/run/netns/{net}.{n + 1}").exists() for n in range(hosts)):  # somebody else's
        net = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
    found = Network(f"dsw{os.getpid()}-{next(_NUMBERS)}", [f"{net}.{n + 1}" for n in range(hosts)])
    try:
        ip("netns", "add", found.switch)
        ip("-n", found.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", found.switch, "link", "set", "br0", "up")
        for n, name in enumerate(found.names):
            ip("netns", "add", name)
            ip(
                "link",
                "add",
                "eth7",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                f"p{n}",
                "netns",
                found.switch,
            )
            ip("-n", found.switch, "link", "set", f"p{n}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{name}/24", "dev", "eth7")
            ip("-n", name, "link", "set", "eth7", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield found
    finally:
        for name in (*found.names, found.switch):
            subprocess.run(
                ["ip", "netns", "del", name], check=False, capture_output=True, timeout=20
            )


def processes(name: str) -> list[int]:
    """Return the processes on a host, other than this one."""
    found = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False, timeout=20
    )
    return [pid for pid in map(int, found.stdout.split()) if pid != os.getpid()]


def kill_all(network: Network) -> None:
    """Kill whatever is on the hosts."""
    for name in network.names:
        for pid in processes(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Let this thread, and the processes and threads that it starts, be on a host."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(file: int) -> None:
        if libc.setns(file, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    with open(f"/proc/self/task/{threading.get_native_id()}/ns/net") as outside:
        with open(f"/run/netns/{name}") as there:
            enter(there.fileno())
        try:
            yield
        finally:
            enter(outside.fileno())


def prefix(name: str, *more: str) -> list[str]:
    """Return what precedes a command that is executed on a host; `more` are more namespaces."""
    return ["nsenter", f"--net=/run/netns/{name}", *(["unshare", *more] if more else [])]


@dataclass
class Cluster:
    """A cluster whose first host is the driver's; the others are nodes."""

    network: Network
    directory: Path
    hidden: Sequence[Path] = ()
    """Directories of the driver's host in whose place nodes have an empty one."""
    nodes: list[str] = field(default_factory=list)
    """What the cluster calls its nodes."""

    @property
    def environ(self) -> dict[str, str]:
        """What commands and clients need to find the cluster."""
        raise NotImplementedError

    @property
    def head(self) -> str:
        """The driver's host."""
        return self.network.names[0]

    def host(self, node: str) -> str:
        """Return the host of a node."""
        return self.network.names[1 + self.nodes.index(node)]

    def argv(self, words: Sequence[str]) -> list[str]:
        """Return a command as it is executed on the driver's host."""
        return [*prefix(self.head), *words]

    def execute(self, *words: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a command on the driver's host, whatever its status."""
        return subprocess.run(
            self.argv(words),
            env=os.environ | self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    def run(self, *words: str, seconds: float = 180.0) -> str:
        """Return what a command prints on the driver's host."""
        done = self.execute(*words, seconds=seconds)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def cut(self, node: str) -> None:
        """Cut the cable of a node. What is there goes on."""
        self.network.cut(self.host(node))

    def mend(self, node: str) -> None:
        self.network.mend(self.host(node))

    def lose(self, node: str) -> None:
        """Cut the cable of a node, and let the cluster notice."""
        self.cut(node)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let this process be a client on the driver's host."""
        with pytest.MonkeyPatch.context() as patch, inside(self.head):
            for name, value in self.environ.items():
                patch.setenv(name, value)
            yield

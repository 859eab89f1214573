"""Ranks as threads, which are quick, and as processes, which can be killed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from det_core import Ranks
from det_node.backends import Socket

KEY = bytes(range(32))
LIMIT_SECONDS = 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def on_hosts(*sizes: int) -> list[Ranks]:
    """Return the ranks of a run with as many on each host."""
    total, places = sum(sizes), []
    for host, size in enumerate(sizes):
        for local in range(size):
            places.append(
                Ranks(
                    rank=len(places),
                    size=total,
                    local_rank=local,
                    local_size=size,
                    cross_rank=host,
                    cross_size=len(sizes),
                )
            )
    return places


def as_threads(*jobs: Callable[[], Any]) -> list[Any]:
    """Run each in a thread; return what they returned or raised."""
    results: list[Any] = [TimeoutError("the thread did not end")] * len(jobs)

    def run(n: int) -> None:
        try:
            results[n] = jobs[n]()
        except Exception as error:
            results[n] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=LIMIT_SECONDS)
    return results


@pytest.fixture
def ranks() -> Callable[..., list[Any]]:
    """Run `work(backend)` on every rank, each in a thread; return what each returned or raised."""

    def run(
        work: Callable[[Socket], Any],
        *,
        places: Sequence[Ranks] = tuple(on_hosts(2)),
        port: int | None = None,
        keys: dict[int, bytes] | None = None,
        **options: float,
    ) -> list[Any]:
        chief = ("127.0.0.1", port or free_port())

        def one(place: Ranks) -> Any:
            backend = Socket(place, chief=chief, key=(keys or {}).get(place.rank, KEY), **options)
            try:
                backend.init()
                return work(backend)
            finally:
                backend.shutdown()

        return as_threads(*(lambda place=place: one(place) for place in places))

    return run


@dataclass
class Processes:
    """Real processes, one for each rank, which print JSON; none outlives the test."""

    folder: Path
    port: int = field(default_factory=free_port)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    PREAMBLE = """
        import json, os, signal, sys, time
        from det_core import DistributedContext
        from det_core.ranks.backend import RankLost
        rank, size, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
        def context(**options):
            return DistributedContext(rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1,
                                      pub_port=port, key=bytes(range(32)).hex(), **options)
        def say(value):
            print(json.dumps(value), flush=True)
        """

    def start(self, script: str, size: int = 2) -> None:
        path = self.folder / "rank.py"
        path.write_text(textwrap.dedent(self.PREAMBLE) + textwrap.dedent(script))
        for rank in range(size):
            self.started.append(
                subprocess.Popen(
                    [sys.executable, str(path), str(rank), str(size), str(self.port)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def hear(self, rank: int) -> Any:
        """Return the next value that a rank says."""
        out = self.started[rank].stdout
        assert out is not None
        line = out.readline()
        if not line:
            raise AssertionError(self.started[rank].communicate(timeout=10)[1])
        return json.loads(line)

    def finish(self) -> list[list[Any]]:
        """Return what every rank said until its end."""
        said = []
        for process in self.started:
            out, error = process.communicate(timeout=LIMIT_SECONDS)
            assert process.returncode == 0, error
            said.append([json.loads(line) for line in out.splitlines()])
        return said


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    for process in started.started:
        process.kill()
        process.communicate()


@pytest.fixture
def kit() -> Any:
    """The names of this file, as test modules cannot import from it."""

    return SimpleNamespace(free_port=free_port, on_hosts=on_hosts, as_threads=as_threads, KEY=KEY)

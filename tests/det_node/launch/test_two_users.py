"""Another user of the machine, against `det launch` and the ranks of a run.

Nothing is read, and nothing is run.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.other_user import (
    answers_of,
    as_other,
    begun_as_other,
    changed_paths,
    command_lines,
    entered_by_all,
    needs_other,
    openers,
    ports_of,
    processes_with,
    race,
    read_of_processes,
    taken_ports,
)

pytestmark = [pytest.mark.process, needs_other]
SECONDS = 60
BEGINS = """
import os, time
from pathlib import Path
from det_core import DistributedContext, core
place, rank = Path(os.environ["PLACE"]), int(os.environ["DET_RANK"])
place.joinpath(f"rank-{rank}").touch()
while rank and not place.joinpath("goes-on").exists():
    time.sleep(0.05)
"""
"""Rank 0 listens for rank 1, which waits until it is let go on."""
LAUNCHED = (
    BEGINS
    + """
with DistributedContext.from_socket() as context:
    print("sum", sum(context.allgather(context.rank + 1)), flush=True)
"""
)
RUN = (
    BEGINS
    + """
with core.init(distributed=DistributedContext.from_socket()) as context:
    assert sum(context.distributed.allgather(rank + 1)) == 3
    if rank == 0:
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_text("secret weights")
        context.train.report_validation_metrics(1, {"error": 0.5})
"""
)
CONFIG = f"""
name: ranks
entrypoint: {sys.executable} -m det_driver.cli launch socket -np 2 -- {sys.executable} train.py
resources: {{slots_per_trial: 2}}
searcher: {{name: single, metric: error, max_length: {{batches: 1}}}}
"""


@contextmanager
def started(place: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start det in a directory that all can enter, where its ranks wait for `goes-on`; end it."""
    scratch = place / "tmp"
    scratch.mkdir(exist_ok=True)
    scratch.chmod(0o1777)
    own = {"DET_HOME": f"{place}/home", "PLACE": str(place), "TMPDIR": str(scratch)}
    settings = {"DET_LEASE": "0", "DET_SLOTS_TOTAL": "2", "API_TOKEN": secrets.token_hex()}
    command = [sys.executable, "-m", "det_driver.cli", *arguments]
    process = subprocess.Popen(
        command, cwd=place, env={**os.environ, **own, **settings}, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        (place / "goes-on").touch()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in processes_with(f"PLACE={place}"):
            os.kill(pid, signal.SIGKILL)


def wait_for_ranks(place: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not all((place / f"rank-{rank}").exists() for rank in range(2)):
        assert process.poll() is None, "the ranks have ended"
        assert time.monotonic() < deadline, "the ranks did not begin"
        time.sleep(0.05)


def wait_for_ports(processes: list[int]) -> list[int]:
    deadline = time.monotonic() + SECONDS
    while not (found := ports_of(processes)):
        assert time.monotonic() < deadline, "rank 0 does not listen"
        time.sleep(0.05)
    return found


def test_what_another_user_tries_would_be_found() -> None:
    """Where it is that user's own, or open to all."""
    with entered_by_all() as place:
        place.chmod(0o777)
        (place / "open").touch()
        (place / "open").chmod(0o666)
        assert as_other(lambda: changed_paths([str(place / "open")])) == [
            *(f"{each} {place}/open" for each in ("reads", "writes", "renames", "replaces"))
        ]
        assert as_other(lambda: len(read_of_processes([os.getppid()]))) == 0
        found = as_other(lambda: read_of_processes([os.getpid()]))
        assert {each.partition(" ")[2] for each in found} >= {"maps", "is sent 18"}


def test_another_user_reads_and_runs_nothing_of_launched_ranks() -> None:
    """The ranks go on meanwhile, as if nobody had asked."""
    with (
        entered_by_all() as place,
        started(
            place, "launch", "socket", "-np", "2", "--", sys.executable, "-c", LAUNCHED
        ) as process,
    ):
        wait_for_ranks(place, process)
        processes = processes_with(f"PLACE={place}")
        hidden = {name: value for pid in processes for name, value in secret_variables(pid)}
        assert hidden.keys() >= {"DET_RANKS_KEY", "API_TOKEN"}
        seen = as_other(command_lines)
        assert any("from_socket" in line for line in seen)
        assert [name for name, value in hidden.items() if any(value in line for line in seen)] == []
        assert len(processes) >= 3
        assert as_other(lambda: read_of_processes(processes)) == []
        ports = wait_for_ports(processes)
        assert as_other(lambda: taken_ports(ports)) == []
        heard = as_other(lambda: answers_of(ports, openers(place / "ran"), 0.3))
        assert len(heard) == len(ports) * len(openers(place))
        assert not any(value in each for value in hidden.values() for each in heard)
        (place / "goes-on").touch()
        output, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, output.count("sum 3")) == (0, 2), output
        assert not (place / "ran").exists()


def secret_variables(pid: int) -> list[tuple[str, str]]:
    """Return the variables of a process that nobody else may know."""
    try:
        pairs = [
            each.partition("=") for each in Path(f"/proc/{pid}/environ").read_text().split("\0")
        ]
    except OSError:
        return []
    return [
        (name, value) for name, _, value in pairs if name.endswith(("_KEY", "_TOKEN")) and value
    ]


@contextmanager
def watched(place: Path) -> Iterator[None]:
    """Write down the processes and ports as soon as there are any.

    It is for another user, who cannot find them out.
    """
    ended = threading.Event()
    told = place / "told"
    told.touch()

    def watch() -> None:
        while not ended.wait(0.02):
            processes = processes_with(f"PLACE={place}")
            new = place / "told.new"
            new.write_text(
                "\n".join([*map(str, processes), *(f"-{port}" for port in ports_of(processes))])
            )
            new.replace(told)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


LAUNCH = ("launch", "socket", "-np", "2", "--", sys.executable, "train.py")


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        pytest.param(LAUNCHED, LAUNCH, id="launch"),
        pytest.param(RUN, ("run", "c.yaml", "--quiet"), id="run", marks=pytest.mark.thorough),
    ],
)
def test_another_user_who_is_quick_reads_and_runs_nothing(
    script: str, arguments: tuple[str, ...]
) -> None:
    """Each file, process and port is tried within moments of its beginning.

    That is from before the first to after the last.
    """
    with entered_by_all() as place, watched(place):
        (place / "train.py").write_text(script)
        (place / "c.yaml").write_text(CONFIG)
        scratch, ran, until = place / "tmp", place / "ran", place / "raced"
        scratch.mkdir()
        said = openers(ran)
        with begun_as_other(lambda: race(scratch, place / "told", until, said)) as wait:
            with started(place, *arguments) as process:
                wait_for_ranks(place, process)
                wait_for_ports(processes_with(f"PLACE={place}"))
                time.sleep(0.5)
                (place / "goes-on").touch()
                process.communicate(timeout=SECONDS)
            until.touch()
            found = wait()
        assert process.returncode == 0
        assert found["done"] == []
        assert len([each for each in found["seen"] if each.isdecimal()]) >= 3
        assert any(each.startswith("-") for each in found["seen"]), "no port was tried"
        assert not any("secret" in each for each in found["heard"])
        assert not ran.exists()

"""Runs trials on several ranks. Each rank is a process, which always ends within a time limit.

`play` starts each rank as `python -m det_testing._play PLAN RANK`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from det_core.errors import DetError
from det_core.hooks import Plugins
from det_core.ranks.backend import Ranks
from det_core.ranks.choice import choose_backend
from det_core.ranks.distributed import DistributedContext
from det_core.train.adapter import Stop
from det_core.train.schedule import At, Every, Schedule
from det_node.backends import Socket

from ._runs import Run, Runs

LIMIT_SECONDS = 240.0
_START_SECONDS = 180.0
_ABORT_SECONDS = 5.0
# The time that the other ranks have to end when one has failed.
_GRACE_SECONDS = 10.0
_decode = msgspec.msgpack.Decoder(dict[str, Run]).decode


@dataclass(frozen=True, kw_only=True)
class Request:
    """A run that all ranks execute together.

    `length` is in batches. It reports after every `report` batches, validates after every
    `validate`, and saves after those of `save_at`. It begins from `checkpoint`, a uuid, or from the
    checkpoint that the request `behind[0]` of the same play saved after batch `behind[1]`. `trial`
    replaces the play's trial class. Requests with `may_be_refused` must be last, because ranks are
    not synchronized after an error.
    """

    name: str
    length: int
    report: int = 1
    validate: int = 0
    save_at: Sequence[int] = ()
    preempt_at: int | None = None
    aggregation: int = 1
    optimizations: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    behind: tuple[str, int] | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    trial: type | None = None
    may_be_refused: bool = False


@dataclass(frozen=True, kw_only=True)
class Cast:
    """A trial class, its framework, the module that registers it, a backend, and the world size."""

    trial: type
    framework: str
    hooks: str
    backend: str
    size: int = 2


def play(
    cast: Cast, requests: Sequence[Request], folder: Path, *, seconds: float = LIMIT_SECONDS
) -> list[dict[str, Run]]:
    """Execute the requests, and return each rank's results by the names of the requests.

    Checkpoints are below `folder`. The trial class must be importable by its module's name. Raises
    RuntimeError, with the output of the rank that failed first, if a rank fails or is not done in
    time.
    """
    plan = folder / "plan.json"
    facts = asdict(cast) | {"trial": _spec(cast.trial), "key": secrets.token_hex(32)}
    asked = [
        asdict(request)
        | {"trial": _spec(request.trial or cast.trial), "save_at": list(request.save_at)}
        for request in requests
    ]
    plan.write_text(json.dumps(facts | {"requests": asked}))
    plan.chmod(0o600)
    command = [sys.executable, "-m", f"{__package__}._play", str(plan)]
    together([[*command, str(rank)] for rank in range(cast.size)], folder, seconds)
    results = [(folder / f"result-{rank}").read_bytes() for rank in range(cast.size)]
    return [_decode(result) for result in results]


def _spec(trial: type) -> str:
    return f"{trial.__module__}:{trial.__qualname__}"


def together(
    commands: Sequence[Sequence[str]], folder: Path, seconds: float = LIMIT_SECONDS
) -> None:
    """Run the commands of all ranks at once. Temporary files go to `folder/scratch`.

    They can import the same modules as this process. Raises RuntimeError, with the output of the
    rank that failed first, if a rank fails or is not done in time.
    """
    (folder / "scratch").mkdir()
    processes: list[subprocess.Popen[bytes]] = []
    # The ranks see the folder by a short path. `multiprocessing` binds sockets in it, whose paths
    # may have about 100 bytes, and without its socket the worker of a loader would hang.
    with tempfile.TemporaryDirectory(prefix="det-", dir="/tmp") as short:  # nosec B108
        scratch = Path(short, "scratch")
        scratch.symlink_to((folder / "scratch").absolute())
        try:
            for rank, command in enumerate(commands):
                processes.append(_start(command, rank, folder, scratch))
            _await(processes, folder, seconds)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _start(
    command: Sequence[str], rank: int, folder: Path, scratch: Path
) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
    own = {
        "PYTHONPATH": paths,
        "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    with (folder / f"rank-{rank}.log").open("wb") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _await(processes: Sequence[subprocess.Popen[bytes]], folder: Path, seconds: float) -> None:
    """Wait until all ranks have succeeded.

    If one fails, the others get some seconds to print why before this raises.
    """
    deadline, failed = time.monotonic() + seconds, list[int]()
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        if not failed and (
            failed := [rank for rank, process in enumerate(processes) if process.poll()]
        ):
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        time.sleep(0.02)
    # All may have ended since the last check.
    failed = failed or [rank for rank, process in enumerate(processes) if process.poll()]
    if not failed:
        _ask_where(processes)
    for rank in failed or [rank for rank, process in enumerate(processes) if process.poll() != 0]:
        what = (
            f"ended with status {processes[rank].poll()}"
            if failed
            else f"did not end within {seconds:g} s"
        )
        output = (folder / f"rank-{rank}.log").read_text(errors="replace")[-6000:]
        raise RuntimeError(f"rank {rank} {what}:\n{output}")


def _ask_where(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Make running processes print the stacks of their threads, and end.

    Python's fault handler does that at SIGABRT.
    """
    late = [process for process in processes if process.poll() is None]
    for process in late:
        process.send_signal(signal.SIGABRT)
    for process in late:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ABORT_SECONDS)


def _be_rank(plan_file: str, rank: str) -> None:
    """Execute the runs of a plan in turn, as one of the ranks, and write their results."""
    path = Path(plan_file)
    plan = json.loads(path.read_text())
    with meet(plan, int(rank), path.parent) as distributed:
        done: dict[str, Run] = {}
        for request in plan["requests"]:
            runs = _runs_of(plan, request["trial"], distributed, path.parent)
            try:
                done[request["name"]] = _do(runs, request, distributed, done)
            except DetError as error:
                if not request["may_be_refused"]:
                    raise
                done[request["name"]] = Run(stop=Stop.NO, error=str(error))
    path.with_name(f"result-{rank}").write_bytes(msgspec.msgpack.encode(done))


def meet(plan: dict[str, Any], rank: int, folder: Path) -> DistributedContext:
    """Connect to the other ranks at the port that rank 0 opens and writes to a file."""
    ranks = Ranks(rank=rank, size=plan["size"], local_rank=rank, local_size=plan["size"])
    file, key = folder / "chief.json", bytes.fromhex(plan["key"])
    if rank == 0:
        socket = Socket(ranks, chief=("127.0.0.1", 0), key=key, ready=lambda at: _publish(file, at))
    else:
        deadline = time.monotonic() + _START_SECONDS
        while not file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 did not start within {_START_SECONDS:g} s")
            time.sleep(0.02)
        host, port = json.loads(file.read_text())
        socket = Socket(ranks, chief=(host, port), key=key)
    return DistributedContext.from_backend(socket)


def _publish(file: Path, address: Any) -> None:
    hidden = file.with_suffix(".new")
    hidden.write_text(json.dumps(address))
    hidden.rename(file)


def _runs_of(
    plan: dict[str, Any], spec: str, distributed: DistributedContext, folder: Path
) -> Runs:
    plugins = Plugins.installed(strict=True)
    if plan["framework"] not in plugins.frameworks():
        plugins.register(importlib.import_module(plan["hooks"]), plan["hooks"])
    backend = choose_backend(plan["backend"], plan["framework"], plugins.backends())
    return Runs(
        plugins, pkgutil.resolve_name(spec), folder, distributed=distributed, backend=backend
    )


def _do(
    runs: Runs, request: dict[str, Any], distributed: DistributedContext, done: dict[str, Run]
) -> Run:
    checkpoint: str | None = request["checkpoint"]
    if request["behind"]:
        name, at = request["behind"]
        checkpoint = distributed.broadcast(done[name].checkpoints.get(at))
    schedule = Schedule(
        report=Every(request["report"]),
        validate=Every(request["validate"]),
        checkpoint=At(set(request["save_at"])),
        policy="none",
    )
    return runs(
        request["length"],
        schedule=schedule,
        checkpoint=checkpoint,
        preempt_at=request["preempt_at"],
        aggregation=request["aggregation"],
        optimizations=request["optimizations"],
        **request["hparams"],
    )


if __name__ == "__main__":
    _be_rank(*sys.argv[1:])

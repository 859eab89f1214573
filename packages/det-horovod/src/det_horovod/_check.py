"""Checks that two ranks of this environment can add numbers with Horovod.

Each rank is `python -m det_horovod._check torch ANSWER`.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_core.ranks.backend import Ranks
from det_core.ranks.launcher import Layout, Place
from det_node.group import Command, Group, RankExit

from ._frameworks import Framework, available
from .launch import Horovod

RANKS = 2
_HOST = "127.0.0.1"
# Variables that another launcher or the user's network settings may have set.
_NO_MATTER = ("HOROVOD_", "OMPI_", "PMI_")
_LENGTH = 1000
_MAKERS = {"torch": "tensor", "tensorflow": "constant"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of the check of one framework.

    `problem` is empty if the check passed. Otherwise `output` is what a failed rank wrote.
    """

    framework: Framework
    operations: tuple[str, ...] = ()
    seconds: float | None = None
    problem: str = ""
    output: str = ""


def check(framework: Framework, environ: Mapping[str, str], seconds: float) -> Finding:
    """Run two processes that add vectors, for at most `seconds`. Both have ended on return."""
    if not available(framework.name):
        return Finding(
            framework=framework,
            problem=f"not built; run: det horovod install --with {framework.name}",
        )
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        logs, results = (
            [Path(folder, f"rank-{n}.{kind}") for n in range(RANKS)] for kind in ("log", "json")
        )
        exits = _run(framework.name, environ, logs, results, seconds)
        took = time.monotonic() - start
        if any(exit.status for exit in exits) or not all(result.exists() for result in results):
            first = min(exits, key=lambda exit: (not exit.status, exit.killed, exit.rank))
            output = logs[first.rank].read_text(errors="replace").strip()
            return Finding(
                framework=framework, seconds=took, problem=_problem(first, seconds), output=output
            )
        found = [json.loads(result.read_text()) for result in results]
    right = all(result["right"] and result["ranks"] == RANKS for result in found)
    return Finding(
        framework=framework,
        operations=tuple(found[0]["operations"]),
        seconds=took,
        problem="" if right else f"a wrong sum: {found[0]}",
    )


def _run(
    name: str,
    environ: Mapping[str, str],
    logs: Sequence[Path],
    results: Sequence[Path],
    seconds: float,
) -> list[RankExit]:
    """Run the ranks until all have ended, for at most `seconds`, and return how they ended."""
    clean = {name: value for name, value in environ.items() if not name.startswith(_NO_MATTER)}
    clean["HOROVOD_GLOO_IFACE"] = "lo" if sys.platform == "linux" else "lo0"
    ranks = [Ranks(rank=n, size=RANKS, local_rank=n, local_size=RANKS) for n in range(RANKS)]
    places = [Place(ranks=each, host=_HOST, port=0) for each in ranks]
    exits: list[RankExit] = []
    with ExitStack() as stack:
        variables = stack.enter_context(
            Horovod().meeting(Layout(places=places, here=_HOST, start_timeout=seconds))
        )
        commands = [
            Command(
                argv=[sys.executable, "-m", "det_horovod._check", name, str(result)],
                env={**clean, **own},
                output=stack.enter_context(log.open("wb")),
            )
            for own, log, result in zip(variables, logs, results, strict=True)
        ]
        group = Group(commands, exits.extend)
        try:
            group.join(seconds)
        finally:
            group.signal(signal.SIGKILL)
            group.join()
    return exits


def _problem(exit: RankExit, seconds: float) -> str:
    if exit.killed:
        return f"the ranks did not end within {seconds:g} s"
    if not exit.status:
        return "the ranks said nothing"
    return f"rank {exit.rank} ended " + (
        f"by signal {-exit.status}" if exit.status < 0 else f"with status {exit.status}"
    )


def main(framework: str, file: str) -> None:
    """Join the other rank, add vectors, and write the result as JSON to `file`.

    The file says whether the sum was right, how many ranks there were, and which of Gloo, MPI and
    NCCL this Horovod has.
    """
    hvd, library = (
        importlib.import_module(f"horovod.{framework}"),
        importlib.import_module(framework),
    )
    hvd.init()
    tensor: Any = getattr(library, _MAKERS[framework])([float(hvd.rank() + 1)] * _LENGTH)
    total = hvd.allreduce(tensor, op=hvd.Sum).numpy().tolist()
    found = {
        "right": total == [float(sum(range(hvd.size() + 1)))] * _LENGTH,
        "ranks": hvd.size(),
        "operations": [kind for kind in ("gloo", "mpi", "nccl") if getattr(hvd, f"{kind}_built")()],
    }
    hvd.shutdown()
    Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

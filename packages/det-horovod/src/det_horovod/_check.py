"""Whether two ranks of this environment can add numbers over Horovod; each is `python -m det_horovod._check torch`."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from os import killpg
from typing import IO, Any

from det_core.backend import Ranks

from ._frameworks import Framework, available
from ._meet import horovod_slots
from ._rendezvous import Rendezvous, address_variables

RANKS = 2
SECONDS = 120.0
_HOST = "127.0.0.1"
_GRACE_SECONDS = 3.0
_NO_MATTER = ("HOROVOD_", "OMPI_", "PMI_")  # what another launcher, or a wish for a certain network, may have left
_LENGTH = 1000
_MAKERS = {"torch": "tensor", "tensorflow": "constant"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What came of one framework; `problem` is empty where all is well, `output` what the ranks wrote where it is not."""

    framework: Framework
    operations: tuple[str, ...] = ()
    seconds: float | None = None
    problem: str = ""
    output: str = ""


def check(framework: Framework, environ: Mapping[str, str], seconds: float = SECONDS) -> Finding:
    """Let two processes add vectors, and see what becomes of them within `seconds`; none is left afterwards."""
    if not available(framework.name):
        return Finding(framework=framework, problem=f"not built; run: det horovod install --with {framework.name}")
    start = time.monotonic()
    statuses, outputs, errors = _ranks(framework, environ, seconds)
    took = time.monotonic() - start
    answers = [_answer(output) for output in outputs]
    if any(statuses) or None in answers:
        return Finding(
            framework=framework, seconds=took, problem=_problem(statuses, seconds), output=_shown(statuses, errors)
        )
    found = [answer for answer in answers if answer is not None]
    right = all(answer["right"] and answer["ranks"] == RANKS for answer in found)
    return Finding(
        framework=framework,
        operations=tuple(found[0]["operations"]),
        seconds=took,
        problem="" if right else f"a wrong sum: {found[0]}",
    )


def _ranks(
    framework: Framework, environ: Mapping[str, str], seconds: float
) -> tuple[list[int | None], list[str], list[str]]:
    """Run the ranks; return their statuses (None for one that did not end in time), outputs and errors."""
    slots = horovod_slots([Ranks(rank=n, size=RANKS, local_rank=n, local_size=RANKS) for n in range(RANKS)])
    clean = {name: value for name, value in environ.items() if not name.startswith(_NO_MATTER)}
    with Rendezvous(_HOST, slots) as rendezvous, ExitStack() as stack:
        shared = {
            **clean,
            **address_variables(_HOST, rendezvous.path()),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "lo" if sys.platform == "linux" else "lo0",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(seconds))),
        }
        files = [[stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in "oe"] for _ in slots]
        processes = [
            _start(framework, {**shared, **slot.variables()}, output, error)
            for slot, (output, error) in zip(slots, files, strict=True)
        ]
        try:
            statuses = _wait(processes, seconds)
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    killpg(process.pid, signal.SIGKILL)
                process.wait()
        outputs, errors = ([_read(pair[n]) for pair in files] for n in range(2))
        return statuses, outputs, errors


def _start(framework: Framework, environ: Mapping[str, str], output: IO[str], error: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "det_horovod._check", framework.name],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=error,
        start_new_session=True,
        text=True,
    )


def _wait(processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[int | None]:
    """Wait until all have ended, one has failed and the others had a moment to say so, or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        statuses = [process.poll() for process in processes]
        if None not in statuses:
            return statuses
        if any(statuses):
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        time.sleep(0.02)
    return [process.poll() for process in processes]


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _answer(output: str) -> dict[str, Any] | None:
    """Return what a rank says in its last line; frameworks may print lines of their own before."""
    with suppress(ValueError, IndexError):
        found = json.loads(output.strip().splitlines()[-1])
        return found if isinstance(found, dict) else None
    return None


def _problem(statuses: Sequence[int | None], seconds: float) -> str:
    failed = [n for n, status in enumerate(statuses) if status]
    if failed:
        status = statuses[failed[0]] or 0
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"rank {failed[0]} ended {how}"
    return f"the ranks did not end within {seconds:g} s" if None in statuses else "the ranks said nothing"


def _shown(statuses: Sequence[int | None], errors: Sequence[str]) -> str:
    """Return the errors of the rank that failed first, as far as that is known."""
    failed = [error for status, error in zip(statuses, errors, strict=True) if status]
    return (failed or list(errors))[0].strip()


def main(framework: str) -> None:
    """Meet the other rank, add, and say what the sum was and what this Horovod can talk over."""
    hvd, library = importlib.import_module(f"horovod.{framework}"), importlib.import_module(framework)
    hvd.init()
    tensor: Any = getattr(library, _MAKERS[framework])([float(hvd.rank() + 1)] * _LENGTH)
    total = hvd.allreduce(tensor, op=hvd.Sum).numpy().tolist()
    found = {
        "right": total == [float(sum(range(hvd.size() + 1)))] * _LENGTH,
        "ranks": hvd.size(),
        "operations": [kind for kind in ("gloo", "mpi", "nccl") if getattr(hvd, f"{kind}_built")()],
    }
    hvd.shutdown()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])

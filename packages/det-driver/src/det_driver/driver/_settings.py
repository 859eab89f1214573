"""What a driver must be told of its machine; read at the edge, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from det_core.backends.socket import START_SECONDS
from det_core.launch import SSH
from det_core.machine import gpus


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """`slots` is how many GPUs, or CPU workers where there are none, the machine has; `gpus` are their ids.

    `threads_chosen` says that the user has set `OMP_NUM_THREADS`. The ranks of a run must meet within `start_timeout` seconds.
    `agent` is a command that runs what follows it on `{host}`, for `distributed.hosts`.
    """

    home: Path
    slots: int
    gpus: tuple[str, ...] = field(default=())
    engine: str = "local"
    threads_chosen: bool = False
    start_timeout: float = START_SECONDS
    agent: str = SSH

    @classmethod
    def detect(cls, environ: Mapping[str, str], *, home: Path, engine: str = "local") -> DriverSettings:
        """Look at the machine: `CUDA_VISIBLE_DEVICES`, the GPUs of the NVIDIA driver, else the CPU's cores.

        `DET_SLOTS_TOTAL` overrides the number of CPU workers, `DET_START_TIMEOUT` the seconds that ranks have to meet,
        `DET_AGENT` the command that reaches other hosts.
        """
        found = gpus(environ)
        slots = len(found) or int(environ.get("DET_SLOTS_TOTAL") or len(os.sched_getaffinity(0)))
        return cls(
            home=home,
            slots=slots,
            gpus=found,
            engine=engine,
            threads_chosen="OMP_NUM_THREADS" in environ,
            start_timeout=float(environ.get("DET_START_TIMEOUT") or START_SECONDS),
            agent=environ.get("DET_AGENT") or SSH,
        )

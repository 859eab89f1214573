"""What the ranks of one host run, with what each finds in its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..devices import gpus
from ..errors import DetError
from ..network import interface_towards
from ._group import Command
from ._hosts import cannot_run


def commands(order: Mapping[str, Any], environ: Mapping[str, str], outputs: Sequence[int]) -> list[Command]:
    """Return the commands of an order, each with its output; on a host that is not the launcher's, `environ` is its own."""
    base = {**environ, **order["env"]} if order["merge"] else order["env"]
    ranks = order["ranks"]
    devices = _shared_gpus(base, len(ranks)) if order["gpus"] else [{}] * len(ranks)
    shared = {**_shared_threads(len(ranks)), **_interface(**order["interface"])}
    return [
        Command(
            argv=order["argv"],
            env={"PYTHONUNBUFFERED": "1", **shared, **base, **device, **rank["env"]},
            cwd=Path(order["cwd"]),
            output=output,
            leash=True,
        )
        for rank, device, output in zip(ranks, devices, outputs, strict=True)
    ]


def _shared_gpus(environ: dict[str, str], ranks: int) -> list[dict[str, str]]:
    """Give one GPU to each rank; where there are fewer, some share one."""
    found = gpus(environ)
    return [{"CUDA_VISIBLE_DEVICES": found[n % len(found)]} if found else {} for n in range(ranks)]


def _shared_threads(ranks: int) -> dict[str, str]:
    return {} if ranks == 1 else {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks))}


def _interface(variables: list[str], towards: str | None) -> dict[str, str]:
    found = interface_towards(towards) if variables and towards else None
    return dict.fromkeys(variables, found) if found else {}


def cannot_start(error: OSError, order: Mapping[str, Any]) -> DetError:
    """Return the mistake that an order is which cannot be started."""
    cwd = order["cwd"]
    if not Path(cwd).is_dir():
        return DetError(f"there is no directory {cwd} on {os.uname().nodename}; the code must be there on every host")
    return cannot_run(order["argv"][0], error)

"""One of two ranks, which trains by Lightning's DDP and by det.

`python -m tests.det_lightning.pair FOLDER RANK CHECKPOINT`

Where CHECKPOINT is "killed", by det alone, until the second rank is killed.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from tests.det_lightning.conftest import Lab
from tests.det_lightning.users import (
    SAVED_AT,
    Alone,
    Case,
    OnRanks,
    Seen,
    by_det,
    last_state,
    metrics_of,
)

from det_core import DistributedContext
from det_core.ranks.choice import choose_backend
from det_testing._play import meet

CASE = Case(OnRanks, lambda path: {"callbacks": [EMAWeightAveraging(decay=0.9)]})
KEY = "00" * 32


def main(folder: Path, rank: int, checkpoint: str) -> None:
    with meet({"size": 2, "key": KEY}, rank, folder) as control:
        lab = Lab(folder)
        backend = choose_backend("native", "lightning", lab.plugins.backends())
        train = partial(by_det, lab, CASE, distributed=control, backend=backend, slots=2)
        at = SAVED_AT[0]
        if checkpoint == "killed":
            train(Seen(kill_at=at + 2 if rank else None), at)
            return
        alone = by_ddp(control, folder)
        found: dict[str, Any] = {"alone": (alone.module.state_dict(), alone.metrics())}
        for way, ran in (
            ("undisturbed", train(Seen())),
            ("killed", train(Seen(), checkpoint=checkpoint)),
        ):
            if rank == 0:
                behind = at if way == "killed" else 0
                found[way] = (last_state(lab, ran)["state_dict"], metrics_of(ran, behind))
    if rank == 0:
        torch.save(found, folder / "found.pt")


def by_ddp(control: DistributedContext, folder: Path) -> Alone:
    """Train by Lightning alone, which meets by variables of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = control.broadcast(free.getsockname()[1])
    own = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LOCAL_RANK": str(control.rank),
        "NODE_RANK": "0",
    }
    os.environ.update(own)
    options: dict[str, Any] = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    alone = Alone(OnRanks(Seen()), **options, **CASE.given(folder))
    torch.distributed.destroy_process_group()
    for name in own:
        del os.environ[name]
    return alone


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

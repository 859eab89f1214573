"""One rank of a test's runs: `python -m det_testing._rank PLAN RANK`, started by `play`."""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from det_core.backend import Ranks
from det_core.backends import Socket, choose_backend
from det_core.distributed import DistributedContext
from det_core.plugins import Plugins
from det_core.schedule import At, Every, Schedule

from ._runs import Run, Runs

START_SECONDS = 60.0


def main(plan_file: str, rank: str) -> None:
    """Do the runs of a plan, one after the other, and write down what became of each."""
    path = Path(plan_file)
    plan = json.loads(path.read_text())
    with _meet(plan, int(rank), path.parent) as distributed:
        done: dict[str, Run] = {}
        for request in plan["requests"]:
            runs = _runs(plan, request["trial"], distributed, path.parent)
            done[request["name"]] = _run(runs, request, distributed, done)
    results = {name: asdict(run) | {"stop": run.stop.name} for name, run in done.items()}
    path.with_name(f"result-{rank}.json").write_text(json.dumps(results))


def _meet(plan: dict[str, Any], rank: int, folder: Path) -> DistributedContext:
    """Meet the other ranks at the port that the first one opens, and writes down."""
    ranks = Ranks(rank=rank, size=plan["size"], local_rank=rank, local_size=plan["size"])
    file, key = folder / "chief.json", bytes.fromhex(plan["key"])
    if rank == 0:
        socket = Socket(ranks, chief=("127.0.0.1", 0), key=key, ready=lambda at: _publish(file, at))
    else:
        deadline = time.monotonic() + START_SECONDS
        while not file.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 did not start within {START_SECONDS:g} s")
            time.sleep(0.02)
        host, port = json.loads(file.read_text())
        socket = Socket(ranks, chief=(host, port), key=key)
    return DistributedContext.from_backend(socket)


def _publish(file: Path, address: Any) -> None:
    hidden = file.with_suffix(".new")
    hidden.write_text(json.dumps(address))
    hidden.rename(file)


def _runs(plan: dict[str, Any], spec: str, distributed: DistributedContext, folder: Path) -> Runs:
    plugins = Plugins.installed(strict=True)
    if plan["framework"] not in plugins.frameworks():
        plugins.register(importlib.import_module(plan["hooks"]), plan["hooks"])
    module, _, name = spec.partition(":")
    trial: Any = importlib.import_module(module)
    for part in name.split("."):
        trial = getattr(trial, part)
    backend = choose_backend(plan["backend"], plan["framework"], plugins.backends())
    return Runs(plugins, trial, folder, distributed=distributed, backend=backend)


def _run(runs: Runs, request: dict[str, Any], distributed: DistributedContext, done: dict[str, Run]) -> Run:
    checkpoint: str | None = request["checkpoint"]
    if request["behind"]:
        name, at = request["behind"]
        checkpoint = distributed.broadcast(done[name].checkpoints.get(at))
    schedule = Schedule(report=Every(1), checkpoint=At(set(request["save_at"])), policy="none")
    return runs(
        request["length"],
        schedule=schedule,
        checkpoint=checkpoint,
        preempt_at=request["preempt_at"],
        aggregation=request["aggregation"],
        **request["hparams"],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

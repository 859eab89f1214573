"""What a checkpoint costs training: written at once, and while training goes on, from a copy.

Both are measured in turns in the same run.

The state of a model that is trained by Adam is saved every 50 steps, alternately at once and beside
training. A save costs what it adds to the steps from it to the next one: the wait at its boundary,
and what steps beside the writing are slower than others. The device is a GPU where there is one; on
a CPU training has one thread. `python benchmarks/saving.py [MEGABYTES [SAVES [IN]]]`
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from det_core import (
    CheckpointSink,
    DistributedContext,
    Every,
    LocalHost,
    Plugins,
    RunInfo,
    Schedule,
    Target,
    run_trial,
)
from det_core.config import parse
from det_core.storage import LocalStorage
from det_torch import DataLoader, PyTorchTrial
from det_torch.adapter import TorchAdapter

EVERY = 50
WIDTH = 1024
BATCH = 256


class Large(PyTorchTrial):
    """Most of its weights are a table, of which a step reads and changes a few rows.

    So a step takes milliseconds, not seconds.
    """

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        rows = context.get_hparam("megabytes") * 2**20 // (4 * WIDTH)
        self.table = context.wrap_model(nn.Embedding(rows, WIDTH, sparse=True))
        self.model = context.wrap_model(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))))
        self.optimizers = [
            context.wrap_optimizer(torch.optim.SGD(self.table.parameters(), lr=0.1)),
            context.wrap_optimizer(torch.optim.Adam(self.model.parameters())),
        ]

    def build_training_data_loader(self) -> Any:
        return DataLoader(torch.arange(BATCH * 100) % 1000, batch_size=BATCH, shuffle=True)  # type: ignore[arg-type]

    def build_validation_data_loader(self) -> Any:
        return DataLoader(torch.arange(BATCH), batch_size=BATCH)  # type: ignore[arg-type]

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.model(self.table(batch)).square().mean()
        self.context.backward(loss)
        for optimizer in self.optimizers:
            self.context.step_optimizer(optimizer)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        TIMES.append(time.perf_counter())
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"val_loss": self.model(self.table(batch)).square().mean()}


TIMES: list[float] = []


class InTurns(TorchAdapter):
    """Takes a copy every second time, and saves at once in between."""

    saves = 0

    def snapshot(self) -> Callable[[Path], None] | None:
        type(self).saves += 1
        return super().snapshot() if self.saves % 2 else None


class Newest(LocalStorage):
    """Keeps the newest, so that the disk does not fill, and notes how long writing takes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.seconds: list[float] = []

    @contextmanager
    def store(self, uuid: str) -> Iterator[Path]:
        began = time.perf_counter()
        with super().store(uuid) as path:
            yield path
        self.seconds.append(time.perf_counter() - began)
        for other in set(self.list()) - {uuid}:
            self.delete(other)


def train(megabytes: int, saves: int, place: Path) -> Newest:
    torch.set_num_threads(1)
    plugins = Plugins.installed()
    info = RunInfo(
        config=parse({"entrypoint": "saving:Large"}).config,
        hparams={"global_batch_size": BATCH, "megabytes": megabytes},
        seed=1,
        build=plugins.build("torch"),
        distributed=DistributedContext(),
        scratch_dir=place,
    )
    storage = Newest(place)
    schedule = Schedule(report=Every(10**6), checkpoint=Every(EVERY), policy="none")
    framework = replace(plugins.frameworks()["torch"], load=lambda: InTurns)
    run_trial(
        framework,
        Large,
        info,
        LocalHost(Target(n=EVERY * saves + 1)),
        CheckpointSink(storage=storage),
        schedule=lambda _: schedule,
    )
    return storage


def main(megabytes: int, saves: int, place: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=place) as root:
        storage = train(megabytes, saves, Path(root))
    gaps = [b - a for a, b in pairwise(TIMES)]
    step = statistics.median(gaps[: EVERY - 1])  # before the first save
    waits: dict[bool, list[float]] = {True: [], False: []}
    costs: dict[bool, list[float]] = {True: [], False: []}
    for number in range(
        2, saves
    ):  # the first copy makes its memory, the first file the directories
        beside = bool(number % 2)
        window = gaps[number * EVERY - 1 : (number + 1) * EVERY - 1]
        waits[beside].append(window[0] - step)
        costs[beside].append(sum(window) - step * EVERY)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU, one thread"
    writing = statistics.median(storage.seconds)
    print(
        f"{megabytes} MB every {EVERY} steps of {step * 1e3:.1f} ms on {device}; writing takes"
        f" {writing:.2f} s"
    )
    for name, found in (("waits", waits), ("costs in all", costs)):
        at_once, beside = statistics.median(found[False]), statistics.median(found[True])
        print(
            f"  training {name}: {at_once:.3f} s at once, {beside:.3f} s beside"
            f" ({beside / step:.1f} steps)"
        )
        print(
            f"    each: {' '.join(f'{a:.3f}' for a in found[False])} /"
            f" {' '.join(f'{b:.3f}' for b in found[True])}"
        )
        print(f"    ratio {beside / at_once:.3f}")


if __name__ == "__main__":
    given = [*sys.argv[1:], *("500", "14", "")[len(sys.argv) - 1 :]]
    main(int(given[0]), int(given[1]), given[2] or None)

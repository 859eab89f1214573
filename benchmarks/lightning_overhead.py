"""What Lightning's Trainer costs under det, as a ratio to the same Trainer without it.

A 32-64-10 MLP, batch 32, one torch thread, 5,000 steps; the loss is logged in each step. Without
det, a callback takes the loss to the host every 100 batches; with det, it is reported as often.
Each training runs in a process of its own, both in alternation; the figure is the median over the
pairs of the ratio of CPU times, with the interval between its quartiles.

    python benchmarks/lightning_overhead.py [--pairs 11] [--steps 5000] [--instructions [--record]]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from instructions import collect_no_whole_heap, count, start, stop
from results import record

BATCH, EPOCH, PERIOD, LIMIT = 32, 500, 100, 1.02
# An epoch has ended by then, and what is done once, such as imports, is done.
WARM_UP = 600


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions instead; takes minutes"
    )
    parser.add_argument(
        "--record", action="store_true", help="keep the count of instructions in results.json"
    )
    parser.add_argument("--child", choices=["bare", "det"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        collect_no_whole_heap()
        print(json.dumps({"bare": bare, "det": det}[arguments.child](arguments.steps)))
        return
    if arguments.instructions:
        ratio = count(
            "det", lambda which, steps: [__file__, "--child", which, "--steps", str(steps)]
        )
        if arguments.record:
            record("lightning_overhead", {"det": ratio})
        return
    cpu, wall, steps = [], [], []
    for pair in range(arguments.pairs):
        order = ("bare", "det") if pair % 2 else ("det", "bare")
        times = {which: child(which, arguments.steps) for which in order}
        cpu.append(times["det"]["cpu"] / times["bare"]["cpu"])
        wall.append(times["det"]["wall"] / times["bare"]["wall"])
        steps.append(times["bare"]["cpu"] / arguments.steps * 1e6)
    print(
        f"CPU {shown(cpu)}   wall {shown(wall)}   ({arguments.pairs} pairs; a bare step takes"
        f" {min(steps):.0f} us)"
    )
    if statistics.median(cpu) > LIMIT:
        raise SystemExit(f"more than {LIMIT}")


def shown(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def child(name: str, steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", name, "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=scratch, timeout=600
        )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


class Clock:
    """CPU and wall time from the end of the warm-up to the last step.

    Both trainings ask it once a step.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps + WARM_UP
        self.result: dict[str, float] = {}

    def tick(self, done: int) -> None:
        if done == WARM_UP:
            self._cpu, self._wall = time.process_time(), time.perf_counter()
            start()
        elif done == self.steps:
            stop()
            self.result = {
                "cpu": time.process_time() - self._cpu,
                "wall": time.perf_counter() - self._wall,
            }


def parts(clock: Clock) -> tuple[Any, Any]:
    """Return the module and its loader: the same for both."""
    import lightning.pytorch as pl
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
            self.done = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            clock.tick(self.done)
            self.done += 1
            loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    inputs = torch.randn(BATCH * EPOCH, 32)
    data = TensorDataset(inputs, inputs[:, :10].argmax(dim=1))
    return Module(), DataLoader(data, batch_size=BATCH, shuffle=True)


def bare(steps: int) -> dict[str, float]:
    import lightning.pytorch as pl

    clock = Clock(steps)
    module, loader = parts(clock)

    class Report(pl.Callback):
        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if (batch_idx + 1) % PERIOD == 0:
                float(trainer.callback_metrics["train_loss"])

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=clock.steps + 1,
        logger=False,
        callbacks=[Report()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return clock.result


def det(steps: int) -> dict[str, float]:
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
    from det_core.config import ExperimentConfig
    from det_core.storage import LocalStorage
    from det_lightning import LightningAdapter

    clock = Clock(steps)
    module, loader = parts(clock)

    class Trial(LightningAdapter):
        def __init__(self, context: Any) -> None:
            super().__init__(context, module)

        def build_training_data_loader(self) -> Any:
            return loader

    plugins = Plugins.installed()
    build = plugins.build("lightning")
    run_trial(
        plugins.frameworks()["lightning"],
        Trial,
        RunInfo(
            config=ExperimentConfig(),
            hparams={},
            seed=0,
            build=build,
            distributed=DistributedContext(),
        ),
        LocalHost(Target(n=clock.steps + 1)),
        CheckpointSink(storage=LocalStorage(Path("checkpoints"))),
        schedule=lambda adapter: Schedule(report=Every(PERIOD), policy="none"),
    )
    return clock.result


if __name__ == "__main__":
    main()

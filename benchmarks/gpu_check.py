"""Whether det-torch does on a GPU what it does on a CPU, and what a step costs there.

The cost is a ratio to a bare loop.

One GPU is enough; with none, it says so. Checks training in fp32, fp16, bf16, compiled and with
aggregated gradients, that a run which is resumed from a checkpoint ends with the weights of one
that was not interrupted, and that the profiler sees the GPU. Exit status 1 where a check fails.

    python benchmarks/gpu_check.py [--steps 300] [--pairs 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

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
from det_core.core._profiler import ProfilerContext
from det_core.core._train import Steps
from det_core.storage import LocalStorage
from det_torch import DataLoader, PyTorchTrial

BATCH, WARM_UP, WIDTH = 256, 50, 1024
DEVICE = torch.device("cuda", 0)


def model() -> nn.Module:
    torch.manual_seed(0)
    hidden = [
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
    ]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 10))


def data() -> TensorDataset:
    inputs = torch.randn(BATCH * 40, WIDTH, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs[:, :10].argmax(dim=1))


class Trial(PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(model())
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        )
        self.loss, self.times = nn.CrossEntropyLoss(), TIMES

    def build_training_data_loader(self) -> Any:
        return DataLoader(data(), batch_size=BATCH, shuffle=True, pin_memory=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(data(), batch_size=BATCH * 4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.times.append(time.perf_counter())
        inputs, labels = batch
        assert inputs.device == next(self.model.parameters()).device == DEVICE
        loss = self.loss(self.model(inputs), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        inputs, labels = batch
        total = sum(p.double().abs().sum() for p in self.model.parameters())
        return {"loss": self.loss(self.model(inputs), labels), "weights": total}


TIMES: list[float] = []


class Runs:
    """Runs of the trial in this process."""

    def __init__(self, root: Path) -> None:
        self._plugins, self._storage = Plugins.installed(), LocalStorage(root)

    def __call__(
        self, length: int, checkpoint: str | None = None, **optimizations: Any
    ) -> LocalHost:
        config = parse({"entrypoint": "m:Trial", "optimizations": optimizations}).config
        build, alone = self._plugins.build("torch"), DistributedContext()
        info = RunInfo(
            config=config,
            hparams={},
            seed=1,
            build=build,
            distributed=alone,
            trial_id=1,
            checkpoint=checkpoint,
        )
        host, keep = LocalHost(Target(n=length)), CheckpointSink(storage=self._storage)
        TIMES.clear()
        plan = Schedule(report=Every(100), policy="none")
        run_trial(
            self._plugins.frameworks()["torch"],
            Trial,
            info,
            host,
            keep,
            schedule=lambda adapter: plan,
        )
        return host


def last(host: LocalHost, group: str, name: str) -> float:
    return float([metrics[name] for g, _, metrics in host.history if g == group][-1])


def learns(runs: Runs, **optimizations: Any) -> str:
    host = runs(200, **optimizations)
    losses = [metrics["loss"] for group, _, metrics in host.history if group == "training"]
    assert losses[-1] < losses[0], f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
    return f"loss {losses[0]:.4f} to {losses[-1]:.4f}"


def resumes(runs: Runs) -> str:
    """With dropout, so that the generators of the GPU count."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    whole = last(runs(120), "validation", "weights")
    first = runs(60)
    second = last(runs(120, checkpoint=first.checkpoints[-1][0].uuid), "validation", "weights")
    assert abs(second - whole) <= 1e-6 * whole, f"{second!r} in place of {whole!r}"
    return "exactly" if second == whole else f"to {abs(second - whole) / whole:.1e}"


def sampled(runs: Runs) -> str:
    """What the profiler reports of the GPU while it trains."""
    host = LocalHost(Target(n=1))
    profiler = ProfilerContext(host, Steps(), 0)
    profiler.on(sampling_interval=0.1, samples_per_report=2)
    runs(2000)
    time.sleep(1)
    profiler.off()
    util, memory = last(host, "system", "gpu0_util"), last(host, "system", "gpu0_memory_used_bytes")
    assert memory > 2**20
    return f"{util:.0f} % busy, {memory / 2**20:.0f} MiB"


def bare(steps: int) -> float:
    """Seconds of a step of the loop to compare with."""
    net = model().to(DEVICE)
    optimizer, loss_of = (
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
        nn.CrossEntropyLoss(),
    )
    loader = torch.utils.data.DataLoader(data(), batch_size=BATCH, shuffle=True, pin_memory=True)
    done, total, began = 0, torch.zeros((), device=DEVICE), 0.0
    while True:
        for inputs, labels in loader:
            if done == WARM_UP:
                torch.cuda.synchronize()
                began = time.perf_counter()
            if done == steps + WARM_UP:
                torch.cuda.synchronize()
                return (time.perf_counter() - began) / steps
            loss = loss_of(
                net(inputs.to(DEVICE, non_blocking=True)), labels.to(DEVICE, non_blocking=True)
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            done += 1
            if done % 100 == 0:
                total.item()


def throughput(runs: Runs, steps: int, pairs: int) -> str:
    ratios, plain = [], []
    for _ in range(pairs):
        plain.append(bare(steps))
        runs(steps + WARM_UP + 1)
        ratios.append((TIMES[steps + WARM_UP] - TIMES[WARM_UP]) / steps / plain[-1])
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    return (
        f"{statistics.median(ratios):.3f} times a bare step of {statistics.median(plain) * 1e6:.0f}"
        f" us ({spread})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: torch.cuda.is_available() is false; nothing was checked")
        return 0
    print(
        f"{torch.cuda.get_device_name(DEVICE)}, torch {torch.__version__},"
        f" {torch.cuda.device_count()} GPUs"
    )
    with tempfile.TemporaryDirectory() as scratch:
        runs = Runs(Path(scratch))
        checks: dict[str, Callable[[], str]] = {
            "fp32": lambda: learns(runs),
            "fp16": lambda: learns(runs, precision="fp16"),
            "bf16": lambda: learns(runs, precision="bf16"),
            "compile": lambda: learns(runs, compile=True),
            "aggregation": lambda: learns(runs, aggregation_frequency=4),
            "resume": lambda: resumes(runs),
            "profiler (nvidia-ml-py)": lambda: sampled(runs),
            "throughput": lambda: throughput(runs, arguments.steps, arguments.pairs),
        }
        return sum(failed(name, check) for name, check in checks.items()) and 1


def failed(name: str, check: Callable[[], str]) -> bool:
    """Print what a check found; tell whether it failed."""
    try:
        print(f"{name:12} {check()}", flush=True)
        return False
    except Exception:
        print(f"{name:12} FAILED\n{traceback.format_exc()}", flush=True)
        return True


if __name__ == "__main__":
    sys.exit(main())

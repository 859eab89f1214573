"""What a step costs under det, and under its peers, as a ratio to a bare loop.

A 32-64-10 MLP, batch 32, one torch thread, 5,000 steps reported every 100. Each loop runs in a
process of its own, the bare one and each other in alternation; the figure is the median over the
pairs of the ratio of CPU times, with the interval between its quartiles. Peers that are not
installed are left out and named.

Where other programs use the machine, CPU times vary by a tenth. `--instructions` counts instead
what the processor is told to do, under valgrind: in two trainings that differ by 1,000 steps, so
that all that is done once cancels out.

    python benchmarks/step_overhead.py [--pairs 11] [--steps 5000] [--only det]
        [--instructions [--record]]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from instructions import collect_no_whole_heap, count, start, stop
from results import record

BATCH, EPOCH, PERIOD = 32, 500, 100
# An epoch has ended by then, and what is done once, such as imports, is done.
WARM_UP = 600
PEERS = {
    "det": "det_torch",
    "fabric": "lightning",
    "lightning": "lightning",
    "ignite": "ignite",
    "accelerate": "accelerate",
    "skorch": "skorch",
    "transformers": "transformers",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--only", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions instead; takes minutes"
    )
    parser.add_argument(
        "--record", action="store_true", help="keep the counts of instructions in results.json"
    )
    parser.add_argument("--child", choices=["bare", *PEERS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        collect_no_whole_heap()
        print(json.dumps(CHILDREN[arguments.child](arguments.steps)))
        return
    absent = [name for name in arguments.only if importlib.util.find_spec(PEERS[name]) is None]
    if absent:
        print(f"not installed, left out: {', '.join(absent)}")
    for name in (name for name in arguments.only if name not in absent):
        if arguments.instructions:
            ratio = count(
                name, lambda which, steps: [__file__, "--child", which, "--steps", str(steps)]
            )
            if arguments.record:
                record("step_overhead", {name: ratio})
        else:
            compare(name, arguments.pairs, arguments.steps)


def compare(name: str, pairs: int, steps: int) -> None:
    """Run a loop and the bare one in turn, and print the ratios."""
    cpu, wall = [], []
    for pair in range(pairs):
        first, second = ("bare", name) if pair % 2 else (name, "bare")
        times = {which: child(which, steps) for which in (first, second)}
        cpu.append(times[name]["cpu"] / times["bare"]["cpu"])
        wall.append(times[name]["wall"] / times["bare"]["wall"])
    bare = child("bare", steps)["cpu"] / steps * 1e6
    print(
        f"{name:10} CPU {shown(cpu)}   wall {shown(wall)}   ({pairs} pairs; a bare step takes"
        f" {bare:.0f} us)",
        flush=True,
    )


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

    Every loop asks it once a step.
    """

    def __init__(self, steps: int) -> None:
        self._last = steps + WARM_UP
        self.steps = self._last
        self.result: dict[str, float] = {}

    def tick(self, done: int) -> None:
        if done == WARM_UP:
            self._cpu, self._wall = time.process_time(), time.perf_counter()
            start()
        elif done == self._last:
            stop()
            self.result = {
                "cpu": time.process_time() - self._cpu,
                "wall": time.perf_counter() - self._wall,
            }


def parts() -> tuple[Any, Any, Any]:
    """Return the model, its loss and its data: the same for every loop."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    inputs = torch.randn(BATCH * EPOCH, 32)
    data = TensorDataset(inputs, inputs[:, :10].argmax(dim=1))
    return model, nn.functional.cross_entropy, data


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def bare(steps: int) -> dict[str, float]:
    """The loop to compare with: nothing that a training does not need."""
    import torch
    from torch.utils.data import DataLoader

    model, loss_of, data = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock, total = Clock(steps), torch.zeros(())
    loader = endless(DataLoader(data, batch_size=BATCH, shuffle=True))
    for done in range(1, clock.steps + 1):
        inputs, labels = next(loader)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if done % PERIOD == 0:
            total.item()
            total.zero_()
        clock.tick(done)
    return clock.result


def det(steps: int) -> dict[str, float]:
    import torch

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
    from det_torch import DataLoader, PyTorchTrial

    model, loss_of, data = parts()
    clock = Clock(steps)

    class Trial(PyTorchTrial):
        def __init__(self, context: Any) -> None:
            self.context = context
            self.model = context.wrap_model(model)
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))

        def build_training_data_loader(self) -> Any:
            return DataLoader(data, batch_size=BATCH, shuffle=True)

        def build_validation_data_loader(self) -> Any:
            return DataLoader(data, batch_size=BATCH * EPOCH)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            clock.tick(batch_idx)  # of the batches before this one
            inputs, labels = batch
            loss = loss_of(self.model(inputs), labels)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch: Any) -> Any:
            return {"loss": loss_of(self.model(batch[0]), batch[1])}

    plugins = Plugins.installed()
    info = RunInfo(
        config=ExperimentConfig(),
        hparams={},
        seed=0,
        build=plugins.build("torch"),
        distributed=DistributedContext(),
    )
    run_trial(
        plugins.frameworks()["torch"],
        Trial,
        info,
        LocalHost(Target(n=clock.steps + 1)),
        CheckpointSink(storage=LocalStorage(Path("checkpoints"))),
        schedule=lambda adapter: Schedule(report=Every(PERIOD), policy="none"),
    )
    return clock.result


def fabric(steps: int) -> dict[str, float]:
    import torch
    from lightning.fabric import Fabric
    from torch.utils.data import DataLoader

    model, loss_of, data = parts()
    engine = Fabric(accelerator="cpu", devices=1)
    model, optimizer = engine.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = endless(engine.setup_dataloaders(DataLoader(data, batch_size=BATCH, shuffle=True)))
    clock, total = Clock(steps), torch.zeros(())
    for done in range(1, clock.steps + 1):
        inputs, labels = next(loader)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        engine.backward(loss)
        optimizer.step()
        total += loss.detach()
        if done % PERIOD == 0:
            total.item()
            total.zero_()
        clock.tick(done)
    return clock.result


def lightning(steps: int) -> dict[str, float]:
    import lightning as L
    import torch
    from torch.utils.data import DataLoader

    model, loss_of, data = parts()
    clock = Clock(steps)

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.total = torch.zeros(())
            self.done = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            clock.tick(self.done)
            self.done += 1
            loss = loss_of(self.model(batch[0]), batch[1])
            self.total += loss.detach()
            if self.done % PERIOD == 0:
                self.total.item()
                self.total.zero_()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=clock.steps + 1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(data, batch_size=BATCH, shuffle=True))
    return clock.result


def ignite(steps: int) -> dict[str, float]:
    import torch
    from ignite.engine import Engine, Events
    from ignite.metrics import RunningAverage
    from torch.utils.data import DataLoader

    model, loss_of, data = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = Clock(steps)

    def step(engine: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    engine = Engine(step)
    RunningAverage(output_transform=lambda loss: loss).attach(engine, "loss")
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: clock.tick(e.state.iteration))
    engine.run(DataLoader(data, batch_size=BATCH, shuffle=True), max_iters=clock.steps)
    return clock.result


def accelerate(steps: int) -> dict[str, float]:
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    model, loss_of, data = parts()
    engine = Accelerator(cpu=True)
    model, optimizer, prepared = engine.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        DataLoader(data, batch_size=BATCH, shuffle=True),
    )
    clock, total, loader = Clock(steps), torch.zeros(()), endless(prepared)
    for done in range(1, clock.steps + 1):
        inputs, labels = next(loader)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        engine.backward(loss)
        optimizer.step()
        total += loss.detach()
        if done % PERIOD == 0:
            total.item()
            total.zero_()
        clock.tick(done)
    return clock.result


def skorch(steps: int) -> dict[str, float]:
    import torch
    from skorch import NeuralNet
    from skorch.callbacks import Callback

    model, _, data = parts()
    clock = Clock(steps)

    class Ticks(Callback):
        done = 0

        def on_batch_end(self, net: Any, training: bool = False, **kwargs: Any) -> None:
            if training:
                self.done += 1
                clock.tick(self.done)

    net = NeuralNet(
        model,
        torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        lr=0.01,
        batch_size=BATCH,
        max_epochs=clock.steps // EPOCH + 1,
        train_split=None,
        iterator_train__shuffle=True,
        callbacks=[Ticks()],
        verbose=0,
    )
    net.fit(data.tensors[0], data.tensors[1])
    return clock.result


def transformers(steps: int) -> dict[str, float]:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    model, loss_of, data = parts()
    clock = Clock(steps)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
            scores = self.model(inputs)
            return {"loss": loss_of(scores, labels), "logits": scores}

    class Ticks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.tick(state.global_step)

    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=clock.steps,
        per_device_train_batch_size=BATCH,
        logging_steps=PERIOD,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        optim="sgd",
        max_grad_norm=0.0,
    )
    rows = [
        {"inputs": inputs, "labels": label} for inputs, label in zip(*data.tensors, strict=True)
    ]
    Trainer(model=Module(), args=arguments, train_dataset=rows, callbacks=[Ticks()]).train()
    return clock.result


CHILDREN: dict[str, Callable[[int], dict[str, float]]] = {
    "bare": bare,
    "det": det,
    "fabric": fabric,
    "lightning": lightning,
    "ignite": ignite,
    "accelerate": accelerate,
    "skorch": skorch,
    "transformers": transformers,
}

if __name__ == "__main__":
    main()

"""What a step on two ranks costs under det, as a ratio to the same loop on the same collectives without det.

An MLP of 1 M parameters, 64 records to a rank, one torch thread, reported every 100 steps: `det run` with `distributed.backend:
horovod` against a plain script with Horovod's optimizer under `horovodrun`, and `native` against torch's DDP under `torchrun`.
Each pair is run one after the other, in turn the one and the other first. Step times are those of rank 0; the start is from the
launcher's first instruction to the end of the first step. Figures are medians, with the interval between the quartiles.

    python benchmarks/distributed.py [--pairs 10] [--steps 300] [--only native] [--launcher det]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

BATCH, EPOCH, WARM_UP, PERIOD = 64, 50, 50, 100
ATTEMPTS = 2  # torchrun's processes were seen to abort at their end, once in a hundred runs
BARE = {"horovod": "horovod_script", "native": "ddp_script"}
CONFIG = """
name: distributed
entrypoint: distributed:Trial
hyperparameters: {global_batch_size: BATCH}
searcher: {name: single, metric: loss, max_length: {batches: LENGTH}}
resources: {slots_per_trial: 2}
distributed: {backend: BACKEND}
scheduling_unit: PERIOD
checkpoint_policy: none
reproducibility: {experiment_seed: 1}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=list(BARE), choices=list(BARE))
    parser.add_argument(
        "--launcher",
        choices=["own", "det"],
        default="own",
        help="what starts the plain scripts: their own, or det launch",
    )
    parser.add_argument("--child", choices=list(BARE.values()), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        SCRIPTS[arguments.child]()
        return
    absent = [name for name in arguments.only if name == "horovod" and importlib.util.find_spec("horovod") is None]
    if absent:
        print("Horovod is not installed, and left out; run: det horovod install")
    bare = {
        name: compare(name, arguments.pairs, arguments.steps, arguments.launcher)
        for name in arguments.only
        if name not in absent
    }
    if len(bare) == 2:
        ratios = [h / n for h, n in zip(bare["horovod"], bare["native"], strict=True)]
        print(f"plain Horovod against plain DDP: wall {shown(ratios)}")


def compare(backend: str, pairs: int, steps: int, launcher: str) -> list[float]:
    """Run det and the plain script in turn, print the ratios, and return the plain step times."""
    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    later, plain = [], []
    for pair in range(pairs):
        both = [("det", det_command(backend)), ("plain", plain_command(backend, launcher))]
        measured = {name: measure(command, backend, steps) for name, command in (both if pair % 2 else both[::-1])}
        for kind, values in ratios.items():
            values.append(measured["det"][kind] / measured["plain"][kind])
        later.append(measured["det"]["start"] - measured["plain"]["start"])
        plain.append(measured["plain"]["wall"] / steps * 1e3)
    print(
        f"{backend:8} wall {shown(ratios['wall'])}   CPU {shown(ratios['cpu'])}   first step {shown(later)} s later   "
        f"({pairs} pairs; a plain step takes {shown(plain)} ms)",
        flush=True,
    )
    return plain


def shown(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def det_command(backend: str) -> list[str]:
    return [sys.executable, "-m", "det_core.cli", "run", "config.yaml", "."]


def plain_command(backend: str, launcher: str) -> list[str]:
    script = ["distributed.py", "--child", BARE[backend]]
    if launcher == "det":
        kind = "horovod" if backend == "horovod" else "torch"
        return [sys.executable, "-m", "det_core.cli", "launch", kind, "-np", "2", "--", sys.executable, *script]
    if backend == "native":
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        return [sys.executable, *run, *script]
    return [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2", sys.executable, *script]


def measure(command: list[str], backend: str, steps: int) -> dict[str, float]:
    """Run a command in a directory of its own; return rank 0's seconds for the steps, and until the first one was done."""
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(__file__, Path(scratch, "distributed.py"))
        config = CONFIG.replace("LENGTH", str(steps + WARM_UP)).replace("BACKEND", backend)
        Path(scratch, "config.yaml").write_text(config.replace("PERIOD", str(PERIOD)).replace("BATCH", str(2 * BATCH)))
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"DET_HOME": f"{scratch}/home", "DET_SLOTS_TOTAL": "2", "OMP_NUM_THREADS": "1", "PATH": path}
        own |= {"BENCHMARK_STEPS": str(steps), "BENCHMARK_RESULT": f"{scratch}/result.json"}
        for attempt in range(ATTEMPTS):
            began = time.time()
            done = subprocess.run(
                command,
                cwd=scratch,
                env={**os.environ, **own},
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            if done.returncode == 0:
                break
            print(f"{' '.join(command)} failed, for the {attempt + 1}. time:\n{done.stderr[-4000:]}", file=sys.stderr)
        else:
            raise SystemExit(f"giving up on {' '.join(command)}")
        result: dict[str, float] = json.loads(Path(scratch, "result.json").read_text())
    return {**result, "start": result["first"] - began}


class Clock:
    """CPU and wall time of rank 0 from the end of the warm-up to the last step; every loop asks it once a step."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.last = int(os.environ["BENCHMARK_STEPS"]) + WARM_UP
        self._result: dict[str, float] = {}

    def tick(self, done: int) -> None:
        """Take note that so many steps are done."""
        if done == 1:
            self._result["first"] = time.time()
        elif done == WARM_UP:
            self._cpu, self._wall = time.process_time(), time.perf_counter()
        elif done == self.last and self._rank == 0:
            self._result |= {"cpu": time.process_time() - self._cpu, "wall": time.perf_counter() - self._wall}
            Path(os.environ["BENCHMARK_RESULT"]).write_text(json.dumps(self._result))


def parts() -> tuple[Any, Any, Any]:
    """Return the model, its loss and its data: the same for every loop."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [256, 768, 768, 256]
    layers = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
    inputs = torch.randn(BATCH * EPOCH, sizes[0])
    data = TensorDataset(inputs, inputs[:, :10].argmax(dim=1))
    return nn.Sequential(*layers, nn.Linear(256, 10)), nn.functional.cross_entropy, data


def train(rank: int, size: int, model: Any, optimizer: Any, loss_of: Any, data: Any) -> None:
    """The loop to compare with: nothing that a training on several ranks does not need."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    clock, total, done = Clock(rank), torch.zeros(()), 0
    sampler = DistributedSampler(data, size, rank, shuffle=True)
    loader, epoch = DataLoader(data, batch_size=BATCH, sampler=sampler), 0
    while True:
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            done += 1
            if done % PERIOD == 0:
                total.item()
                total.zero_()
            clock.tick(done)
            if done == clock.last:
                return
        epoch += 1


def ddp_script() -> None:
    import torch
    import torch.distributed as dist

    model, loss_of, data = parts()
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(dist.get_rank(), dist.get_world_size(), model, optimizer, loss_of, data)
    dist.destroy_process_group()


def horovod_script() -> None:
    import horovod.torch as hvd
    import torch

    model, loss_of, data = parts()
    hvd.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    train(hvd.rank(), hvd.size(), model, optimizer, loss_of, data)


SCRIPTS = {"ddp_script": ddp_script, "horovod_script": horovod_script}

if __name__ == "__main__":
    main()
else:  # det imports the trial
    from det_torch import DataLoader, PyTorchTrial

    class Trial(PyTorchTrial):
        """The same as a trial."""

        def __init__(self, context: Any) -> None:
            import torch

            self.context = context
            model, self.loss, self.data = parts()
            self.model = context.wrap_model(model)
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
            self.clock = Clock(context.distributed.rank)

        def build_training_data_loader(self) -> Any:
            return DataLoader(self.data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

        def build_validation_data_loader(self) -> Any:
            return DataLoader(self.data, batch_size=EPOCH * BATCH)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            inputs, labels = batch
            loss = self.loss(self.model(inputs), labels)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            self.clock.tick(batch_idx + 1)
            return {"loss": loss}

        def evaluate_batch(self, batch: Any) -> Any:
            return {"loss": self.loss(self.model(batch[0]), batch[1])}

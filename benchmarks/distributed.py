"""What a step on two ranks costs under det, as a ratio to the same loop without det.

Both are on the same collectives.

An MLP of 1 M parameters, 64 records to a rank, one torch thread, reported every 100 steps:
`det run` with `distributed.backend: horovod` against a plain script with Horovod's optimizer under
`horovodrun`, and `native` against torch's DDP under `torchrun`. How the pairs are run: `pairs.py`.

    python benchmarks/distributed.py [--pairs 10] [--steps 300] [--only native] [--launcher det]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from pairs import Clock, compare, shown

BATCH, EPOCH, PERIOD = 64, 50, 100
BARE = {"horovod": "horovod_script", "native": "ddp_script"}
CONFIG = f"""
name: distributed
entrypoint: distributed:Trial
hyperparameters: {{global_batch_size: {2 * BATCH}}}
searcher: {{name: single, metric: loss, max_length: {{batches: LENGTH}}}}
resources: {{slots_per_trial: 2}}
distributed: {{backend: BACKEND}}
scheduling_unit: {PERIOD}
checkpoint_policy: none
reproducibility: {{experiment_seed: 1}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    absent = [
        name
        for name in arguments.only
        if name == "horovod" and importlib.util.find_spec("horovod") is None
    ]
    if absent:
        print("Horovod is not installed, and left out; run: det horovod install")
    bare = {
        name: compare(
            name,
            {"det": det_command(), "plain": plain_command(name, arguments.launcher)},
            CONFIG.replace("BACKEND", name),
            script=__file__,
            pairs=arguments.pairs,
            steps=arguments.steps,
        )
        for name in arguments.only
        if name not in absent
    }
    if len(bare) == 2:
        ratios = [h / n for h, n in zip(bare["horovod"], bare["native"], strict=True)]
        print(f"plain Horovod against plain DDP: wall {shown(ratios)}")


def det_command() -> list[str]:
    return [sys.executable, "-m", "det_driver.cli", "run", "config.yaml", "."]


def plain_command(backend: str, launcher: str) -> list[str]:
    script = ["distributed.py", "--child", BARE[backend]]
    if launcher == "det":
        kind = "horovod" if backend == "horovod" else "torch"
        return [
            sys.executable,
            "-m",
            "det_driver.cli",
            "launch",
            kind,
            "-np",
            "2",
            "--",
            sys.executable,
            *script,
        ]
    if backend == "native":
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        return [sys.executable, *run, *script]
    return [
        str(Path(sys.executable).with_name("horovodrun")),
        "--gloo",
        "-np",
        "2",
        sys.executable,
        *script,
    ]


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
    dist.barrier()  # so that neither goes before the other has done its last step
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
            return DataLoader(
                self.data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True
            )

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

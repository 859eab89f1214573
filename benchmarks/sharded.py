"""What a step of a model that is divided among ranks costs under det.

The figure is a ratio to a bare loop with `fully_shard`.

A transformer of 3 M parameters (`--width`, `--layers` make it another), 32 records to a rank,
reported every 50 steps: `det run` with `optimizations.sharding: fsdp` against a plain script under
`torchrun`, by Gloo between CPUs or NCCL between GPUs. With `--ranks 1`, as on a machine with one
GPU, both divide the model over a mesh of one. How the pairs are run: `pairs.py`.

    python benchmarks/sharded.py [--pairs 5] [--steps 100] [--ranks 2]
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from pairs import Clock, compare

BATCH, RECORDS, PERIOD = 32, 1600, 50
CONFIG = f"""
name: sharded
entrypoint: sharded:Trial
hyperparameters: {{global_batch_size: GLOBAL}}
searcher: {{name: single, metric: loss, max_length: {{batches: LENGTH}}}}
resources: {{slots_per_trial: RANKS}}
optimizations: {{sharding: fsdp}}
scheduling_unit: {PERIOD}
checkpoint_policy: none
reproducibility: {{experiment_seed: 1}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        plain()
        return
    os.environ |= {"SHARDED_WIDTH": str(arguments.width), "SHARDED_LAYERS": str(arguments.layers)}
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(arguments.ranks)]
    compare(
        "fsdp",
        {
            "det": [sys.executable, "-m", "det_driver.cli", "run", "config.yaml", "."],
            "plain": [sys.executable, *run, "sharded.py", "--child"],
        },
        CONFIG.replace("GLOBAL", str(BATCH * arguments.ranks)).replace(
            "RANKS", str(arguments.ranks)
        ),
        script=__file__,
        pairs=arguments.pairs,
        steps=arguments.steps,
    )


def parts() -> tuple[Any, Any]:
    """Return the model and its data: the same for both."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, layers = int(os.environ["SHARDED_WIDTH"]), int(os.environ["SHARDED_LAYERS"])
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    inputs = torch.randn(RECORDS, 16, width)
    return nn.Sequential(encoder, nn.Linear(width, 10)), TensorDataset(
        inputs, inputs[:, :, :10].argmax(dim=2)
    )


def loss_of(model: Any, inputs: Any, labels: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(inputs).flatten(0, 1), labels.flatten())


def divided(model: Any, device: Any) -> Any:
    """Divide a model as det does."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model.to(device)
    for layer in model[0].layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def plain() -> None:
    """The loop to compare with: nothing that such a training does not need."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    model, data = parts()
    model = divided(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    clock, total, done = Clock(rank), torch.zeros((), device=device), 0
    sampler = DistributedSampler(data, size, rank, shuffle=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)
    while done < clock.last:
        sampler.set_epoch(done)
        for inputs, labels in loader:
            loss = loss_of(model, inputs.to(device), labels.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            done += 1
            if done % PERIOD == 0:
                total.item()
                total.zero_()
            clock.tick(done)
            if done == clock.last:
                break
    dist.barrier()  # so that none goes before the others have done their last step
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
else:  # det imports the trial
    from det_torch import DataLoader, PyTorchTrial

    class Trial(PyTorchTrial):
        """The same as a trial; one rank alone divides its model itself."""

        def __init__(self, context: Any) -> None:
            import torch

            self.context = context
            model, self.data = parts()
            if context.distributed.size == 1:
                import torch.distributed as dist

                dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
                model = divided(model, context.device)
            self.model = context.wrap_model(model)
            self.optimizer = context.wrap_optimizer(
                torch.optim.AdamW(self.model.parameters(), lr=0.001)
            )
            self.clock = Clock(context.distributed.rank)

        def build_training_data_loader(self) -> Any:
            return DataLoader(self.data, batch_size=BATCH, shuffle=True)

        def build_validation_data_loader(self) -> Any:
            return DataLoader(self.data, batch_size=RECORDS // 4)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = loss_of(self.model, *batch)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            self.clock.tick(batch_idx + 1)
            return {"loss": loss}

        def evaluate_batch(self, batch: Any) -> Any:
            return {"loss": loss_of(self.model, *batch)}

"""Modules that their `configure_model` divides among the ranks.

The numbers of copies, through kills, on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from det_horovod import available

MODEL = """
import os, signal
from pathlib import Path
import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard
from det_lightning import LightningAdapter

class Module(pl.LightningModule):
    def __init__(self, kill_at):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(7, 7) for _ in range(3)]).double()
        self.kill_at = kill_at

    def configure_model(self):
        if self.device_mesh is None or isinstance(self.layers[0], FSDPModule):
            return
        for layer in self.layers:
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

    def training_step(self, batch, batch_idx):
        if self.global_step == self.kill_at and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = (self(batch[0]) - batch[1]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("loss", (self(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

class Trial(LightningAdapter):
    def __init__(self, context):
        given = GIVEN
        super().__init__(context, lightning_module=Module(context.get_hparam("kill_at")), gradient_clip_val=0.5, **given)

    def build_training_data_loader(self):
        return self.loader(32, True)

    def build_validation_data_loader(self):
        return self.loader(5, False)

    def loader(self, count, shuffle):
        generator = torch.Generator().manual_seed(count)
        x = torch.randn(count, 7, generator=generator, dtype=torch.double)
        data = torch.utils.data.TensorDataset(x, torch.sin(x.sum(1, keepdim=True)).expand(-1, 7))
        return torch.utils.data.DataLoader(data, batch_size=2 if shuffle else 1, shuffle=shuffle)
"""
CONFIG = """
name: divided
entrypoint: model_def:Trial
hyperparameters: {global_batch_size: 4, kill_at: -1}
searcher: {name: single, metric: loss, max_length: {batches: 24}}
resources: {slots_per_trial: 2}
distributed: {backend: native}
optimizations: {sharding: none}
min_validation_period: {batches: 6}
min_checkpoint_period: {batches: 6}
checkpoint_policy: all
scheduling_unit: 2
reproducibility: {experiment_seed: 5}
"""
FSDP = ("-c", "optimizations.sharding=fsdp")


@pytest.fixture
def trained(det: Any) -> Callable[..., int]:
    count = 0

    def train(*words: str, given: str = "{}", status: int | None = 0, model: str = MODEL) -> Any:
        nonlocal count
        (det.cwd / "model_def.py").write_text(model.replace("GIVEN", given))
        (det.cwd / "const.yaml").write_text(CONFIG)
        done = det("run", "const.yaml", "--quiet", *words, status=status)
        count += 1
        return count if status == 0 else done

    return train


def losses(det: Any, experiment: int) -> dict[tuple[str, int], float]:
    found = det.metrics(experiment)
    return {(row["group"], row["batches"]): row.get("loss", row.get("train_loss")) for row in found}


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_sharded_module_trains_as_copies_through_a_kill(
    det: Any, trained: Callable[..., int]
) -> None:
    """Its checkpoint also validates alike on a single rank."""
    copies, divided = trained(), trained(*FSDP)
    one, two = losses(det, copies), losses(det, divided)
    assert one.keys() == two.keys()
    assert {("validation", 24), ("training", 24)} <= one.keys()
    assert max(abs(one[at] - two[at]) for at in one) < 1e-9

    beside = ("-c", "optimizations.asynchronous_checkpoints=true")
    killed = trained(*FSDP, *beside, "-c", "hyperparameters.kill_at=9")
    assert det.json("show", str(killed))["trials"][0]["restarts"] == 1
    assert losses(det, killed) == two

    last = max(det.json("checkpoint", "list", str(divided)), key=lambda each: each["batches"])[
        "uuid"
    ]
    alone = trained(
        *("-c", "resources.slots_per_trial=1", "-c", f"searcher.source_checkpoint_uuid={last}"),
        *("-c", "searcher.max_length.batches=1", "-c", "perform_initial_validation=true"),
    )
    assert losses(det, alone)["validation", 0] == pytest.approx(two["validation", 24], abs=1e-12)


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_lightnings_own_strategy_divides_among_all_ranks(
    det: Any, trained: Callable[..., int]
) -> None:
    short = ("-c", "searcher.max_length.batches=6", "-c", "optimizations.aggregation_frequency=4")
    one = losses(det, trained(*FSDP, *short))
    assert losses(det, trained(*short, given="{'strategy': ModelParallelStrategy()}")) == one


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        (
            "{'strategy': ModelParallelStrategy(tensor_parallel_size=2)}",
            (),
            "whose ranks want the same data",
        ),
        pytest.param(
            *(
                "{'strategy': 'fsdp'}",
                (),
                "strategy 'fsdp' is the first FSDP; give ModelParallelStrategy()",
            ),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *(
                "{}",
                (*FSDP, "-c", "distributed.backend=horovod"),
                "divided by torch's own collectives",
            ),
            marks=[
                pytest.mark.thorough,
                pytest.mark.skipif(
                    not available("torch"), reason="Horovod is not installed for torch"
                ),
            ],
        ),
    ],
)
@pytest.mark.timeout(120)
def test_what_cannot_be_divided_so_is_one_sentence(
    trained: Callable[..., Any], given: str, more: tuple[str, ...], said: str
) -> None:
    done = trained(*more, given=given, status=None)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_late_buffer_of_a_sharded_module_is_refused_at_a_save(
    trained: Callable[..., Any],
) -> None:
    late = MODEL.replace(
        "        self.kill_at = kill_at\n",
        "        self.kill_at = kill_at\n        self.register_buffer('centre', None)\n",
    ).replace(
        "        loss = (self(batch[0])",
        "        self.centre = batch[0].mean(0)\n        loss = (self(batch[0])",
        1,
    )
    short = ("-c", "searcher.max_length.batches=2")
    done = trained(*FSDP, *short, model=late, status=None)
    assert done.returncode == 2
    assert "training has made the buffer centre of a sharded module" in done.stderr

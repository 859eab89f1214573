"""Two ranks, each in a thread: what they see, validate and save together."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.trainer.connectors import data_connector
from lightning.pytorch.utilities import rank_zero_only
from tests.det_lightning.conftest import Host, Ran, trial_of
from tests.det_torch.test_ranks import together
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from det_core import At, CheckpointSink, DistributedContext, Every, Schedule, run_trial


@pytest.fixture(autouse=True)
def this_process_is_the_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Lightning forget of which rank the last thread was.

    Whoever is not the chief logs nothing.
    """
    monkeypatch.setattr(rank_zero_only, "rank", 0)


@pytest.fixture(autouse=True)
def lightning_leaves_classes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Lightning from patching `DataLoader` and `BatchSampler` while it asks for data.

    They belong to the process, and ranks are processes. Two threads would undo the patch twice.
    """
    monkeypatch.setattr(data_connector, "_replace_dunder_methods", lambda *_: nullcontext())


class Mean(pl.LightningModule):
    """Validates the mean of its records, in every way that a module may.

    Has a statistic that no gradient reaches.
    """

    def __init__(
        self, seen: list[tuple[int, float]], validation: Any, training: Any = None
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("statistic", torch.zeros(1))
        self.seen, self.validation, self.training_data = seen, validation, training
        self.outputs: list[torch.Tensor] = []
        self.total = torch.zeros(1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        (x,) = batch
        self.seen.extend((self.global_rank, value) for value in x.flatten().tolist())
        self.statistic += x.mean().detach()
        return (self.weight * x).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        (x,) = batch
        mean = x.mean()
        self.outputs.append(mean)
        self.total += x.sum()
        self.log("mean", mean)
        self.log("synced", mean, sync_dist=True)
        self.log("largest", x.max(), reduce_fx="max")
        self.log("sum", x.sum(), reduce_fx="sum")
        self.log("statistic", self.statistic.squeeze())
        return {"returned": mean}

    def on_validation_epoch_end(self) -> None:
        if self.outputs:
            self.log("at_end", torch.stack(self.outputs).mean())
        gathered = self.all_gather(self.total)
        self.log("total", gathered.sum(), sync_dist=True)
        self.outputs.clear()
        self.total.zero_()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def train_dataloader(self) -> Any:
        return self.training_data(self) if self.training_data else loader(4)

    def val_dataloader(self) -> Any:
        return self.validation(self)


def loader(count: int, values: list[float] | None = None) -> Any:
    numbers = torch.tensor(values) if values else torch.arange(float(count))
    return DataLoader(TensorDataset(numbers.reshape(-1, 1)), batch_size=1)


def on_two(
    lab: Any, trial: type, length: int, schedule: Schedule | None = None, **info: Any
) -> Any:
    """Return the chief's run."""

    def run(rank: int, distributed: DistributedContext) -> Ran:
        host = Host(length, None)
        mine = replace(lab.info(**info), distributed=distributed, slots=2)
        framework = lab.plugins.frameworks()["lightning"]
        stop = run_trial(
            framework,
            trial,
            mine,
            host,
            CheckpointSink(storage=lab.storage),
            schedule=lambda a: schedule or Schedule(policy="none"),
        )
        return Ran(stop, host)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return together(run)[0]


def metrics(ran: Any) -> dict[str, float]:
    (found,) = ran.validation.values()
    return {
        name: value
        for name, value in found.items()
        if name not in ("batches", "epochs", "statistic")
    }


@pytest.mark.parametrize("values", [[100.0, 0.0, 0.0], [100.0], [1.0, 2.0, 3.0, 4.0, 9.0]])
def test_each_validation_record_counts_once(lab: Any, values: list[float]) -> None:
    """Whatever the number of ranks; also where one of them gets fewer batches, or none."""
    trial = trial_of(lambda: Mean([], lambda module: loader(0, values)))
    one, two = lab(trial, 2), on_two(lab, trial, 1)
    assert metrics(two) == pytest.approx(metrics(one))
    assert metrics(two)["mean"] == pytest.approx(sum(values) / len(values))


def test_what_is_reported_is_what_is_saved(lab: Any) -> None:
    """A statistic that differs between ranks is the chief's, in the report and the checkpoint."""
    ran = on_two(lab, trial_of(lambda: Mean([], lambda module: loader(3))), 2)
    with lab.opened(ran.checkpoints[2]) as path:
        saved = torch.load(path / "lightning.ckpt", weights_only=True)["state_dict"]["statistic"]
    assert ran.validation[2]["statistic"] == saved.item()


class Own(Mean):
    """Keeps the statistic with which each rank trains, and logs it at the end of an epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append((self.global_rank, self.statistic.item()))
        self.statistic += batch[0].mean()
        return (self.weight * batch[0]).mean()

    def on_train_epoch_end(self) -> None:
        self.log("own", self.statistic.squeeze())


def test_ranks_go_on_with_their_own_buffers(lab: Any) -> None:
    """After a validation, a save and a restart, as no forward pass makes them equal here."""
    seen: list[tuple[int, float]] = []
    trial = trial_of(lambda: Own(seen, lambda module: loader(3)))
    rare = Schedule(report=Every(3), policy="none")
    alone = on_two(lab, trial, 5, rare)
    expected = sorted(seen)
    assert {(0, 2.0), (1, 4.0)} <= set(seen)
    seen.clear()
    schedule = replace(rare, validate=Every(2), checkpoint=At({2}))
    saved = on_two(lab, trial, 5, schedule)
    assert sorted(seen) == expected
    del seen[4:]
    resumed = on_two(lab, trial, 5, schedule, checkpoint=saved.checkpoints[2])
    assert sorted(seen) == expected
    assert [run.training[3]["own"] for run in (alone, saved, resumed)] == [3.0] * 3


def sampled(module: pl.LightningModule) -> Any:
    data = TensorDataset(torch.arange(8.0).reshape(-1, 1))
    rank, ranks = module.trainer.global_rank, module.trainer.world_size
    return DataLoader(
        data, batch_size=1, sampler=DistributedSampler(data, ranks, rank, shuffle=False)
    )


def declared(module: pl.LightningModule) -> Any:
    class Share(IterableDataset):
        det_sharded = True

        def __iter__(self) -> Any:
            yield from (
                (torch.tensor([float(i)]),) for i in range(module.trainer.global_rank, 8, 2)
            )

    return DataLoader(Share(), batch_size=1)


@pytest.mark.parametrize("data", [sampled, declared])
def test_data_that_shards_itself_is_not_dealt_again(lab: Any, data: Any) -> None:
    seen: list[tuple[int, float]] = []
    ran = on_two(lab, trial_of(lambda: Mean(seen, data, data)), 4)
    assert sorted(seen) == [(i % 2, float(i)) for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    assert metrics(ran)["mean"] == pytest.approx(3.5)


def test_a_fraction_is_of_each_ranks_batches(lab: Any) -> None:
    """As with a DistributedSampler of Lightning's. Also in a run that resumes within an epoch."""
    seen: list[tuple[int, float]] = []

    class Seeing(Mean):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            # Not an attribute, which a resumed run would restore.
            seen.append((self.global_rank, batch[0].item()))
            return super().training_step(batch, batch_idx)

    trial = trial_of(
        lambda: Seeing([], lambda module: loader(2), lambda module: loader(10)),
        limit_train_batches=0.5,
    )
    schedule = Schedule(checkpoint=At({3}), policy="none")
    ran = on_two(lab, trial, 4, schedule)
    epoch = [(0, 0.0), (0, 2.0), (1, 1.0), (1, 3.0)]
    assert sorted(seen) == sorted(epoch * 2)
    assert ran.training[4]["epochs"] == 2
    seen.clear()
    on_two(lab, trial, 6, schedule, checkpoint=ran.checkpoints[3])
    assert sorted(seen) == sorted([(0, 2.0), (1, 3.0), *epoch])

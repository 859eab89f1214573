"""Two ranks, each in a thread: what they report together."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from det_core import (
    Backend,
    CheckpointSink,
    DistributedContext,
    Every,
    LocalHost,
    Ranks,
    Schedule,
    Target,
    TrialError,
    run_trial,
)
from det_core.checkpoint import read_checkpoint
from det_torch import DataLoader, PyTorchCallback, Reducer, state
from det_torch.backends import Native
from det_torch.testing import OneVarTrial, Records

SIZE = 2


class Threads(Backend):
    """One rank of those that meet at a barrier."""

    def __init__(self, rank: int, barrier: threading.Barrier, values: list[Any]) -> None:
        self.ranks = Ranks(rank=rank, size=SIZE)
        self._barrier, self._values = barrier, values

    def init(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def barrier(self) -> None:
        self._barrier.wait()

    def allgather(self, value: Any) -> list[Any]:
        self._values[self.ranks.rank] = copy.deepcopy(value)  # as what travels is a copy
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values

    def broadcast(self, value: Any) -> Any:
        return self.allgather(value)[0]


def together(run: Callable[[int, DistributedContext], Any]) -> list[Any]:
    """Call `run` on every rank at once."""
    barrier, values = threading.Barrier(SIZE, timeout=60), [None] * SIZE

    def one(rank: int) -> Any:
        try:
            return run(rank, DistributedContext.from_backend(Threads(rank, barrier, values)))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(SIZE) as pool:
        ends = [pool.submit(one, rank) for rank in range(SIZE)]
    errors = [end.exception() for end in ends]
    for error in errors:  # a rank that waited for one that failed is not the cause
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [end.result() for end in ends]


def reports(lab: Any, trial: type, length: int, **info: Any) -> list[dict[str, Any]]:
    """Train on every rank; return what the chief reported, and on which ranks hooks were called."""
    schedule = Schedule(report=Every(2), policy="none")

    def run(rank: int, distributed: DistributedContext) -> LocalHost:
        host = LocalHost(Target(n=length))
        mine = replace(lab.info(**info), distributed=distributed, slots=SIZE)
        framework = lab.plugins.frameworks()["torch"]
        run_trial(
            framework,
            trial,
            mine,
            host,
            CheckpointSink(storage=lab.storage),
            schedule=lambda adapter: schedule,
        )
        return host

    chief, other = together(run)
    assert other.history == []
    return [{"group": group, "at": batches, **metrics} for group, batches, metrics in chief.history]


class Sharded(OneVarTrial):
    """Reports the records it saw, in training and validation, one to a batch."""

    calls: list[Any]

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.seen = context.wrap_reducer(list, name="seen")

    def build_training_data_loader(self) -> Any:
        return DataLoader(Records([1.0, 2.0, 3.0, 4.0]), batch_size=1)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records([1.0, 2.0, 6.0]), batch_size=1)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.seen.update(batch.item())
        return {"x": batch.sum()}

    def evaluate_batch(self, batch: Any) -> Any:
        self.seen.update(batch.item())
        return {"mean": batch.sum(), "most": batch.sum()}

    def evaluation_reducer(self) -> Any:
        return {"mean": Reducer.AVG, "most": Reducer.MAX}


HPARAMS = {"global_batch_size": 2}


def test_every_rank_has_its_share_and_the_reports_are_of_all(lab: Any) -> None:
    """Batch i is for rank i modulo 2; what reducers gather comes in the order of the data."""
    training, validation = reports(lab, Sharded, 2, hparams=HPARAMS)
    assert (training["x"], training["seen"], training["epochs"]) == (2.5, [1.0, 2.0, 3.0, 4.0], 1.0)
    assert (validation["mean"], validation["most"], validation["seen"]) == (
        3.0,
        6.0,
        [1.0, 2.0, 6.0],
    )


def test_training_metrics_are_the_chiefs_own_where_that_is_asked(lab: Any) -> None:
    config = {"optimizations": {"average_training_metrics": False}}
    assert reports(lab, Sharded, 2, hparams=HPARAMS, config=config)[0]["x"] == 2.0


def test_the_global_batch_is_dealt_to_the_ranks(lab: Any) -> None:
    def sizes(rank: int, distributed: DistributedContext) -> Any:
        from det_torch.context import PyTorchTrialContext

        info = replace(lab.info(hparams={"global_batch_size": 7}), distributed=distributed)
        context = PyTorchTrialContext(info, torch.device("cpu"))
        with pytest.warns(
            UserWarning, match="global_batch_size 7 is no multiple of 2 ranks; 6 is used"
        ):
            return context.get_per_slot_batch_size(), context.get_global_batch_size()

    assert [
        sizes(rank, DistributedContext.from_backend(Threads(rank, threading.Barrier(1), [])))
        for rank in (0, 1)
    ] == [(3, 6), (3, 6)]


def test_a_full_evaluation_is_the_chiefs_with_all_of_the_data(lab: Any) -> None:
    calls: list[int] = []

    class Full(Sharded):
        evaluate_batch = OneVarTrial.__mro__[1].evaluate_batch  # type: ignore[attr-defined]

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"noting": Noting(calls, self.context.distributed.rank)}

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            return {
                "sum": sum(batch.item() for batch in data_loader),
                "rank": self.context.distributed.rank,
            }

    validation = reports(lab, Full, 2, hparams=HPARAMS)[-1]
    assert (validation["sum"], validation["rank"]) == (9.0, 0)
    assert sorted(calls) == [
        ("end", 0, 9.0),
        ("end", 1, 9.0),
        ("state", 0),
        ("uploaded", 0),
        ("uploaded", 1),
        ("write", 0),
    ]


class Noting(PyTorchCallback):
    """Notes on which ranks hooks are called."""

    def __init__(self, calls: list[Any], rank: int) -> None:
        self.calls, self.rank = calls, rank

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.calls.append(("end", self.rank, metrics["sum"]))

    def state_dict(self) -> dict[str, Any]:
        self.calls.append(("state", self.rank))
        return {}

    def on_checkpoint_write_end(self, checkpoint_dir: Any) -> None:
        self.calls.append(("write", self.rank))

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.calls.append(("uploaded", self.rank))


class Around(OneVarTrial):
    """Goes around det where it may: torch's own backward pass and step."""

    model: Any

    def build_training_data_loader(self) -> Any:
        return DataLoader(Records([1.0, 2.0, 3.0, 4.0]), batch_size=1)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = ((batch - self.model(batch)) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"weight": self.model.weight.sum(), "rank": float(self.context.distributed.rank)}


def test_direct_optimizer_step_uses_the_mean_of_all_gradients(lab: Any) -> None:
    """Rank 0 has the records 1 and 3, rank 1 those of 2 and 4.

    By the mean of the two gradients the weight is one number.
    """
    weight, rate = 0.0, 0.01
    for records in ((1.0, 2.0), (3.0, 4.0)):
        weight -= rate * sum(-2 * x * (x - weight * x) for x in records) / 2
    validation = reports(lab, Around, 2, hparams={"global_batch_size": 2, "lr": rate})[-1]
    assert validation["weight"] == pytest.approx(weight, rel=1e-5)


class Apart(Around):
    """Changes its weights by what only this rank knows."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        with torch.no_grad():
            self.model.weight += self.context.distributed.rank
        return {"loss": 0.0}


def test_replicas_that_came_apart_are_not_saved(lab: Any) -> None:
    with pytest.raises(
        TrialError,
        match="at batch 2 the weights of rank 1 differ from those of rank 0; step the optimizer",
    ):
        reports(lab, Apart, 2, hparams=HPARAMS)


class Normalized(Around):
    """Has a buffer that each rank changes by itself."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.norm = context.wrap_model(torch.nn.BatchNorm1d(1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.norm(torch.cat([batch, 2 * batch]))
        return {"loss": 0.0}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"mean": self.norm.running_mean.sum()}


def test_the_checkpoint_gives_the_numbers_that_were_reported(lab: Any) -> None:
    """Statistics of BatchNorm are each rank's own while it trains.

    What is validated is the chief's, and so is what is saved.
    """
    validation = reports(lab, Normalized, 2, hparams=HPARAMS)[-1]
    [uuid] = lab.storage.list()
    with read_checkpoint(lab.storage, uuid) as (path, _):
        saved = state.load(path)["models_state_dict"][1]["running_mean"]
    assert validation["mean"] == saved.item()


def test_rendezvous_file_is_deleted_by_the_last_rank_that_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the chief, as torch's store waits minutes for a file that is deleted at its close."""
    monkeypatch.setenv("DET_SCRATCH_DIR", str(tmp_path))

    def meet(rank: int, distributed: DistributedContext) -> list[int]:
        there = []
        for leaving in (*range(2), None):
            backend = Native()
            backend.ranks = distributed.ranks
            stores = [backend._in_a_file(distributed)]
            for turn in range(2):
                distributed.barrier()
                if stores and (leaving is None or turn == (leaving + rank) % 2):
                    stores.clear()
                    backend._left()
                distributed.barrier()
                there.append(len(list(tmp_path.iterdir())))
                distributed.barrier()
        return there

    assert together(meet) == [[1, 0, 1, 0, 0, 0]] * 2

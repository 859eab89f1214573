"""Limits and fractions of the data.

A trial and a script see the batches that Lightning's own Trainer would give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from tests.det_lightning.conftest import trial_of
from tests.det_lightning.users import quiet
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from det_core import At, Every, Schedule, TrialError, core
from det_lightning import trainer

ROWS = torch.arange(24.0)[:, None]


class Rows(IterableDataset):
    """Six batches in an epoch, of which it says nothing."""

    def __iter__(self) -> Iterator[Any]:
        return ((row,) for row in ROWS)


class Place(Rows):
    """Keeps its place."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        for at in range(self.at, 24):
            self.at = at + 1
            yield (ROWS[at],)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def loader(size: int = 4) -> Any:
    return DataLoader(TensorDataset(ROWS), size)


DATA: dict[str, Callable[[], Any]] = {
    "a map": loader,
    "an iterable": lambda: DataLoader(Rows(), 4),
    "an iterable that keeps its place": lambda: DataLoader(Place(), 4),
    "two of other lengths": lambda: {"long": loader(), "short": loader(5)},
    "the shorter of two": lambda: CombinedLoader(
        {"long": loader(), "short": loader(5)}, "min_size"
    ),
}


class Sees(pl.LightningModule):
    """Notes each batch that it sees, and behind which step."""

    def __init__(self, data: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.data = torch.nn.Linear(1, 1), data
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        parts = list(batch.values()) if isinstance(batch, dict) else [batch]
        self.seen.append(
            (self.current_epoch, batch_idx, [each[0].flatten().tolist() for each in parts])
        )
        return torch.stack([self.layer(each[0] / 24).square().mean() for each in parts]).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(("validated", self.global_step, batch[0].flatten().tolist()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self) -> Any:
        return DATA[self.data]()

    def val_dataloader(self) -> Any:
        return loader(3)


def alone(data: str, **given: Any) -> Sees:
    module = Sees(data)
    quiet(**{"max_epochs": 3, **given}).fit(module)
    return module


def same(module: Sees, other: Sees) -> None:
    assert module.seen == other.seen
    assert torch.equal(module.layer.weight, other.layer.weight)


@pytest.mark.parametrize(
    ("data", "given"),
    [
        ("a map", {"limit_train_batches": 0.5}),
        ("a map", {"limit_train_batches": 0.7, "limit_val_batches": 0.5}),
        ("a map", {"limit_train_batches": 5, "limit_val_batches": 2}),
        ("an iterable", {"limit_train_batches": 5}),
        ("an iterable that keeps its place", {"limit_train_batches": 2}),
        ("two of other lengths", {}),
        ("two of other lengths", {"limit_train_batches": 0.5}),
        ("the shorter of two", {"limit_train_batches": 3}),
    ],
)
def test_a_trial_sees_what_lightning_would_give(lab: Any, data: str, given: Any) -> None:
    """Also where it goes on from the middle of an epoch, and from the end of one."""
    expected = alone(data, **given)
    length = sum(each[0] != "validated" for each in expected.seen)
    epoch = length // 3

    def run(**more: Any) -> tuple[Any, Sees]:
        made: list[Sees] = []
        make = lambda: made.append(Sees(data)) or made[-1]  # type: ignore[func-returns-value]  # noqa: E731
        saves = At({epoch + 1, 2 * epoch})
        schedule = Schedule(report=Every(1), validate=Every(epoch), checkpoint=saves, policy="none")
        return lab(trial_of(make, **given), length, schedule=schedule, **more), made[-1]

    whole, module = run()
    same(module, expected)
    for at in (epoch + 1, 2 * epoch):
        _, again = run(checkpoint=whole.checkpoints[at])
        same(again, _behind(expected, again))


def _behind(expected: Sees, other: Sees) -> Sees:
    expected.seen = expected.seen[-len(other.seen) :]
    return expected


@pytest.mark.parametrize(
    ("data", "given"),
    [
        ("a map", {"limit_train_batches": 0.5, "val_check_interval": 0.5}),
        ("a map", {"limit_train_batches": 0.5, "max_steps": 7}),
        ("a map", {"val_check_interval": 0.3}),
        ("a map", {"overfit_batches": 0.5}),
        ("a map", {"fast_dev_run": 2}),
        ("an iterable", {"overfit_batches": 2}),
        ("an iterable", {"limit_train_batches": 5}),
        ("an iterable", {"reload_dataloaders_every_n_epochs": 1}),
        ("an iterable", {"val_check_interval": 4, "check_val_every_n_epoch": None}),
    ],
)
def test_a_script_sees_what_lightning_would_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, given: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    module = Sees(data)
    with core.init() as context:
        quiet(lambda **options: trainer(context, **options), **{"max_epochs": 3, **given}).fit(
            module
        )
    same(module, alone(data, **given))


def test_fraction_of_less_than_a_batch_is_refused(lab: Any) -> None:
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match=r"0\.1 \* 6 < 1"):
        lab(trial_of(lambda: Sees("a map"), limit_train_batches=0.1), 3)


@pytest.mark.parametrize("limit", [0, 0.0])
def test_a_trial_that_trains_nothing_is_refused(lab: Any, limit: Any) -> None:
    with pytest.raises(TrialError, match="limit_train_batches=0 trains nothing; leave it out"):
        lab(trial_of(lambda: Sees("a map"), limit_train_batches=limit), 3)

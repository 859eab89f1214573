"""Every model that Lightning ships to show itself trains under det, as it is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.demos import boring_classes as boring
from lightning.pytorch.demos.lstm import LightningLSTM
from lightning.pytorch.demos.mnist_datamodule import _MNIST, MNISTDataModule
from lightning.pytorch.demos.transformer import LightningTransformer
from tests.det_lightning.conftest import trial_of
from torch.utils.data import DataLoader

from det_core import At, Every, Schedule, Stop


class DemoData(pl.LightningDataModule):
    """What the demo without data of its own is shown with."""

    def train_dataloader(self) -> Any:
        return DataLoader(boring.RandomDataset(32, 64), batch_size=4)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the place of that which the demos would download; they take what is there."""
    monkeypatch.chdir(tmp_path)
    words = random.Random(0).choices([f"w{n}" for n in range(50)], k=2500)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "wikitext-2.txt").write_text(
        "\n".join(" ".join(words[at : at + 10]) for at in range(0, 2500, 10))
    )


def check(lab: Any, make: Any, data: Any = None, length: int = 5) -> Any:
    """Train, and train the second half again from a checkpoint."""
    trial = trial_of(make, data)
    whole = lab(
        trial, length, schedule=Schedule(report=Every(1), checkpoint=At({3}), policy="none")
    )
    assert whole.stop is Stop.COMPLETED
    assert list(whole.training) == list(range(1, length + 1))
    second = lab(trial, length, checkpoint=whole.checkpoints[3])
    assert second.losses == {batches: loss for batches, loss in whole.losses.items() if batches > 3}
    return whole


@pytest.mark.parametrize("make", [boring.BoringModel, boring.ManualOptimBoringModel])
def test_the_boring_models(lab: Any, make: Any) -> None:
    assert "x" in check(lab, make).validation[5]  # which its validation step returns


def test_the_boring_data_modules(lab: Any) -> None:
    check(lab, boring.BoringModel, boring.BoringDataModule)


@pytest.mark.filterwarnings("ignore:.*has no state_dict")
def test_the_boring_data_without_a_length(lab: Any) -> None:
    ran = lab(trial_of(boring.BoringModel, boring.BoringDataModuleNoLen), 5)
    assert list(ran.training) == [1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:.*has no state_dict")
def test_several_boring_loaders_one_of_them_without_a_length(lab: Any) -> None:
    class Both(boring.BoringModel):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": self.step(batch[0]) + self.step(batch[1])}

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return {"x": self.step(batch)}

    epochs: list[int] = []

    class Told(Both):
        def on_train_epoch_end(self) -> None:
            epochs.append(self.trainer.fit_loop.epoch_loop.batch_progress.current.completed)

    ran = lab(trial_of(Told, boring.IterableBoringDataModule), 35)
    assert max(ran.training) == 35
    assert epochs == [16, 16, 3]


def test_the_demo_model(lab: Any) -> None:
    check(lab, boring.DemoModel, DemoData)


@pytest.mark.process
@pytest.mark.usefixtures("texts")
def test_the_transformer(lab: Any) -> None:
    check(lab, lambda: LightningTransformer(vocab_size=51))


@pytest.mark.process
@pytest.mark.usefixtures("texts")
def test_the_lstm(lab: Any) -> None:
    """It keeps its hidden state in the module, where nothing saves it.

    It trains, and cannot resume exactly anywhere.
    """
    ran = lab(trial_of(lambda: LightningLSTM(vocab_size=51)), 5)
    assert "train_loss" in ran.training[5]


def test_the_images(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's own convolutional network and data module, on a few images that are made here."""
    monkeypatch.setenv("PL_USE_MOCKED_MNIST", "1")
    folder = tmp_path / "MNIST" / "complete"
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for name, count in ((_MNIST.TRAIN_FILE_NAME, 48), (_MNIST.TEST_FILE_NAME, 8)):
        images = torch.randint(0, 255, (count, 28, 28), dtype=torch.uint8, generator=generator)
        torch.save((images, torch.randint(0, 10, (count,), generator=generator)), folder / name)

    class Images(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = boring.Net()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.nn.functional.nll_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.nn.functional.nll_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    ran = check(
        lab,
        Images,
        lambda: MNISTDataModule(str(tmp_path), val_split=16, num_workers=0, batch_size=8),
    )
    assert "loss" in ran.validation[5]

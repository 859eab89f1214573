"""Two ranks under DDP whose training reads a buffer, which DDP broadcasts at times or never."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from det_lightning import LightningAdapter
from det_testing import Run
from det_testing._play import Cast, Request, play
from det_torch.testing import Records

LENGTH = 7
STOPS = [2, 5]
CASES: dict[str, dict[str, Any]] = {
    "automatic": {},
    "manual": {},
    "accumulated": {"accumulate_grad_batches": 2},
    "never broadcast": {"broadcast_buffers": False},
}


class Centred(pl.LightningModule):
    """Subtracts the mean of the records so far."""

    def __init__(self, *, manual: bool) -> None:
        super().__init__()
        self.automatic_optimization = not manual
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("centre", torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = ((self.weight * (batch - self.centre)) ** 2).mean()
        self.centre.lerp_(batch.mean(), 0.5)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", (self.weight * (batch - self.centre)).mean())
        self.log("centre", self.centre.squeeze())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Trial(LightningAdapter):
    """Trains the module in one of the cases."""

    def __init__(self, context: Any) -> None:
        case = context.get_hparam("case")
        module = Centred(manual=case == "manual")
        given = dict(CASES[case])
        strategy = DDPStrategy(broadcast_buffers=given.pop("broadcast_buffers", True))
        super().__init__(context, lightning_module=module, strategy=strategy, **given)

    def build_training_data_loader(self) -> Any:
        return DataLoader(Records([1.0, 5.0, 2.0, 9.0, 4.0, 3.0, 8.0, 0.0]), batch_size=1)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records([1.0, 2.0]), batch_size=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    requests: list[Request] = []
    for case in CASES:
        given: dict[str, Any] = {"length": LENGTH, "hparams": {"case": case}}
        requests.append(Request(name=case, **given))
        requests.append(Request(name=f"{case}, saved", validate=2, save_at=STOPS, **given))
        requests += [
            Request(name=f"{case}, {at}", behind=(f"{case}, saved", at), validate=2, **given)
            for at in STOPS
        ]
    cast = Cast(trial=Trial, framework="lightning", hooks="det_lightning._hooks", backend="native")
    return play(cast, requests, tmp_path_factory.mktemp("ranks"))[0]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("case", CASES)
def test_saves_validations_and_restarts_change_nothing(runs: dict[str, Run], case: str) -> None:
    """A buffer that each rank keeps for itself until DDP broadcasts the chief's."""
    alone, saved = runs[case], runs[f"{case}, saved"]
    assert saved.losses == alone.losses
    for at in STOPS:
        resumed = runs[f"{case}, {at}"]
        assert resumed.losses == {n: loss for n, loss in alone.losses.items() if n > at}
        assert resumed.validations == {n: found for n, found in saved.validations.items() if n > at}

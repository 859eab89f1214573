"""Steps of optimizers: aggregation, averaging, clipping, several of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from det_core import Every, Schedule, TrialError
from det_testing import OneVar
from det_torch import DataLoader, PyTorchTrial
from det_torch.testing import OneVarTrial, Records


def aggregating(batches: int, **more: Any) -> dict[str, Any]:
    return {"optimizations": {"aggregation_frequency": batches, **more}}


class Regression(PyTorchTrial):
    """A line through 24 points, with `records` of them in a batch."""

    def __init__(self, context: Any) -> None:
        self.context = context
        torch.manual_seed(0)
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self) -> Any:
        return DataLoader(
            Records([n / 24 for n in range(24)]), batch_size=self.context.get_hparam("records")
        )

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records([1.0]), batch_size=1)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = ((self.model(batch) - 3 * batch - 1) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"slope": self.model.weight.sum(), "offset": self.model.bias.sum()}


def test_aggregated_small_batches_train_as_one_big_batch(lab: Any) -> None:
    """The mean of the gradients of four batches of 3 records is that of one of 12."""
    big = lab(Regression, 6, hparams={"records": 12}).validation[6]
    small = lab(Regression, 24, hparams={"records": 3}, config=aggregating(4)).validation[24]
    assert small["slope"] == pytest.approx(big["slope"], rel=1e-5)
    assert small["offset"] == pytest.approx(big["offset"], rel=1e-5)


def test_without_averaging_gradients_are_summed(lab: Any) -> None:
    summed = lab(
        OneVarTrial, 2, config=aggregating(2, average_aggregated_gradients=False)
    ).validation[2]["weight"]
    assert summed == pytest.approx(2 * OneVar().weight(2, aggregation=2), rel=1e-5)


def test_averaging_is_decided_for_each_optimizer(lab: Any) -> None:
    """Two like models; only the gradients of the first are summed."""

    class Two(OneVarTrial):
        def __init__(self, context: Any) -> None:
            self.context = context
            self.spec = OneVar()
            self.pairs = []
            for average in (False, None):
                model = nn.Linear(1, 1, bias=False)
                nn.init.zeros_(model.weight)
                model = context.wrap_model(model)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
                self.pairs.append(
                    (model, context.wrap_optimizer(optimizer, average_aggregated_gradients=average))
                )

        settings = OneVar()

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            for model, optimizer in self.pairs:
                loss = ((model(batch) - batch) ** 2).mean()
                self.context.backward(loss)
                self.context.step_optimizer(optimizer)
            return loss

        def evaluate_batch(self, batch: Any) -> dict[str, Any]:
            return {
                f"weight {index}": model.weight.sum() for index, (model, _) in enumerate(self.pairs)
            }

    weights = lab(Two, 2, config=aggregating(2)).validation[2]
    assert weights["weight 0"] == pytest.approx(2 * weights["weight 1"], rel=1e-5)


def test_gradients_are_clipped_once_they_are_complete(lab: Any) -> None:
    """The function gets the optimizer's parameters, behind the averaging."""
    norms: list[float] = []

    class Trial(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = ((self.model(batch) - batch) ** 2).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, clip_grads=self.clip)
            return loss

        def clip(self, parameters: Any) -> None:
            norms.append(float(nn.utils.clip_grad_norm_(list(parameters), 0.5)))

    ran = lab(Trial, 4, hparams={"global_batch_size": 2, "lr": 0.1}, config=aggregating(2))
    assert len(norms) == 2
    assert norms[0] == pytest.approx((2 + 2 * 1.2**2) / 2, rel=1e-5)
    assert ran.validation[4]["weight"] == pytest.approx(0.1, rel=1e-4)


def test_gradients_stay_where_the_trial_zeroes_them_itself(lab: Any) -> None:
    left: list[float] = []

    class Trial(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = ((self.model(batch) - batch) ** 2).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, auto_zero_grads=False)
            left.append(float(self.model.weight.grad))
            return loss

    whole = lab(Trial, 4)
    assert len(set(left)) == 4
    first = lab(Trial, 2)
    assert lab(Trial, 4, checkpoint=first.checkpoints[2]).losses[4] == whole.losses[4]
    with pytest.raises(
        TrialError,
        match=r"auto_zero_grads=False contradicts optimizations.aggregation_frequency: 2; leave",
    ):
        lab(Trial, 2, config=aggregating(2))


def test_sparse_gradients_are_averaged_too(lab: Any) -> None:
    class Sparse(OneVarTrial):
        def __init__(self, context: Any) -> None:
            self.context, self.settings = context, OneVar()
            table = nn.Embedding(4, 1, sparse=True)
            nn.init.zeros_(table.weight)
            self.model = context.wrap_model(table)
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(table.parameters(), lr=1.0))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = self.model(torch.tensor([1])).sum()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return loss

        def evaluate_batch(self, batch: Any) -> dict[str, Any]:
            return {"value": self.model.weight[1].sum()}

    assert lab(Sparse, 2, config=aggregating(2)).validation[2]["value"] == -1.0


class Gan(PyTorchTrial):
    """A generator of one number that should come to be 3, and a critic.

    Each with an optimizer and a scheduler.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        self.generator = context.wrap_model(nn.Linear(1, 1))
        self.critic = context.wrap_model(
            nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
        )
        self.g = context.wrap_optimizer(torch.optim.Adam(self.generator.parameters(), lr=0.01))
        self.c = context.wrap_optimizer(
            torch.optim.SGD(self.critic.parameters(), lr=0.05, momentum=0.9)
        )

    def build_training_data_loader(self) -> Any:
        return DataLoader(Records([2.9, 3.0, 3.1, 3.2, 2.8]), batch_size=2, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records([1.0]))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        made = self.generator(torch.randn(len(batch), 1))
        loss_g = -self.critic(made).mean()
        self.context.backward(loss_g)  # leaves gradients in the critic, too
        self.context.step_optimizer(self.g)
        self.c.zero_grad()
        loss_c = self.critic(made.detach()).mean() - self.critic(batch).mean()
        self.context.backward(loss_c)
        self.context.step_optimizer(self.c)
        return {"loss": loss_g, "critic": loss_c}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"made": self.generator(batch).sum(), "judged": self.critic(batch).sum()}


def test_several_models_and_optimizers_are_resumed_exactly(lab: Any) -> None:
    whole = lab(Gan, 11)
    for at in (4, 7):
        first = lab(Gan, 20, preempt_at=at)
        second = lab(Gan, 11, checkpoint=first.checkpoints[at])
        assert {**first.training, **second.training} == whole.training
        assert second.validation == whole.validation
    contents = lab.contents(whole.checkpoints[11])
    assert [
        len(contents[f"{part}_state_dict"]) for part in ("models", "optimizers", "lr_schedulers")
    ] == [2, 2, 0]


def test_one_optimizer_of_two_may_be_stepped_more_rarely(lab: Any) -> None:
    """Its gradients, which wait meanwhile, are part of the checkpoint."""

    class Rarely(Gan):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            loss = self.critic(self.generator(batch)).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.g)
            if batch_idx % 3 == 2:
                self.context.step_optimizer(self.c)
            return {"loss": loss}

    whole = lab(Rarely, 7, schedule=Schedule(report=Every(1), policy="none"))
    first = lab(Rarely, 4)
    assert "1.0.weight" in lab.contents(first.checkpoints[4])["gradients"]
    assert lab(Rarely, 7, checkpoint=first.checkpoints[4]).losses[7] == whole.losses[7]


def test_a_warm_start_takes_no_waiting_gradients_along(lab: Any) -> None:
    first = lab(OneVarTrial, 3, config=aggregating(2))
    assert "gradients" in lab.contents(first.checkpoints[3])
    warm = lab(OneVarTrial, 1, config=aggregating(2), checkpoint=first.checkpoints[3], trial_id=2)
    assert list(lab.contents(warm.checkpoints[1])["gradients"]) == ["0.weight"]
    after = OneVar().error(2, aggregation=2)
    two = lab(OneVarTrial, 2, config=aggregating(2), checkpoint=first.checkpoints[3], trial_id=2)
    assert two.validation[2]["weight"] == pytest.approx(
        1 - after * OneVar().error(2, aggregation=2), rel=1e-5
    )

"""The hooks: light, and open to any other plugin."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from det_core import hookimpl
from det_torch import PyTorchTrial
from det_torch.data import DataLoader
from det_torch.testing import OneVarTrial, Records


@pytest.mark.process
def test_the_hook_module_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, det_torch._hooks, det_torch; print(sorted({'torch', 'numpy',"
        " 'det_torch.adapter'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


class Wrapped(OneVarTrial):
    """Passes its parts through `wrap_*`."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.scheduler = context.wrap_lr_scheduler(
            StepLR(self.optimizer, 1, gamma=0.5), _every_batch()
        )


class Built(PyTorchTrial):
    """Gives its parts by `build_*`."""

    def build_model(self) -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.03)

    def build_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        from det_torch import LRScheduler

        return LRScheduler(StepLR(optimizer, 1, gamma=0.5), _every_batch())

    def build_training_data_loader(self) -> Any:
        return DataLoader(Records([1.0, 2.0]))

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records([1.0]))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = ((self.model(batch) - batch) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"y": self.model(batch).sum()}


def _every_batch() -> Any:
    from det_torch import LRScheduler

    return LRScheduler.StepMode.STEP_EVERY_BATCH


class Stranger:
    """A plugin of somebody else.

    Doubles the model's output, the learning rate, and the batches it gives.
    """

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl(wrapper=True)
    def det_build_model(self, context: Any) -> Any:
        model = yield
        self.seen.append(
            ("model", type(model).__name__, next(model.parameters()).device == context.device)
        )
        return nn.Sequential(model, Doubling())

    @hookimpl(wrapper=True)
    def det_build_optimizer(self) -> Any:
        optimizer = yield
        self.seen.append(("optimizer", type(optimizer).__name__))
        optimizer.param_groups[0]["lr"] *= 2
        return optimizer

    @hookimpl(wrapper=True)
    def det_build_lr_scheduler(self) -> Any:
        scheduler = yield
        self.seen.append(("scheduler", type(scheduler).__name__))
        return StepLR(scheduler.optimizer, 1, gamma=1.0)

    @hookimpl(wrapper=True)
    def det_build_data_loader(self, split: str) -> Any:
        loader = yield
        self.seen.append((split, type(loader).__name__))
        return [batch * 2 for batch in loader]


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize("trial", [Wrapped, Built])
def test_a_stranger_may_wrap_what_either_style_of_trial_builds(
    lab: Any, trial: type[PyTorchTrial]
) -> None:
    """Each hook gets the user's raw object, and what comes of it is what the trial trains with."""
    stranger = Stranger()
    lab.plugins.register(stranger, "stranger")
    with lab.adapter(trial) as adapter:
        assert stranger.seen == [
            *(("model", "Linear", True), ("optimizer", "SGD"), ("scheduler", "StepLR")),
            *(("training", "DataLoader"), ("validation", "DataLoader")),
        ]
        assert [type(part).__name__ for part in adapter.trial.model] == ["Linear", "Doubling"]
        assert adapter.context.optimizers[0].param_groups[0]["lr"] == 0.06
        wrapped = adapter.context.lr_schedulers[0]
        assert wrapped.scheduler.gamma == 1.0
        assert (
            getattr(adapter.trial, "scheduler", None) or adapter.trial.lr_scheduler.scheduler
        ) is wrapped.scheduler
    ran = lab(trial, 2)
    assert ran.training[1]["loss"] == 4  # (0 - 2·1)²
    assert list(lab.contents(ran.checkpoints[2])["models_state_dict"][0]) == ["0.weight"]


def test_a_stranger_may_replace_what_is_built(lab: Any) -> None:
    """An implementation that is asked before ours, and does not build at all."""

    class Replacing:
        @hookimpl(tryfirst=True)
        def det_build_optimizer(self, context: Any) -> Any:
            return torch.optim.Adam(context.models[0].parameters(), lr=0.5)

    lab.plugins.register(Replacing(), "replacing")
    with lab.adapter(OneVarTrial) as adapter:
        assert type(adapter.trial.optimizer).__name__ == "Adam"
        assert adapter.context.optimizers == [adapter.trial.optimizer]


def test_a_failing_stranger_is_not_hidden(lab: Any) -> None:
    class Failing:
        @hookimpl(wrapper=True)
        def det_build_model(self) -> Any:
            yield
            raise ArithmeticError("theirs")

    lab.plugins.register(Failing(), "failing")
    with pytest.raises(ArithmeticError, match="theirs"):
        lab(OneVarTrial, 1)

"""What the check before training finds in a PyTorchTrial."""

from __future__ import annotations

import copy
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from det_core import MetricError, Plugins, TrialError
from det_node.first_check import check
from det_testing import Runs
from det_torch import PyTorchCallback, _hooks
from det_torch.testing import OneVarTrial


def found(trial: type, tmp_path: Path, **hparams: Any) -> list[str]:
    plugins = Plugins(strict=True)
    plugins.register(_hooks, "torch")
    runs = Runs(plugins, trial, tmp_path / "runs")
    scratch = tmp_path / "check"
    scratch.mkdir()
    return check(runs.framework, trial, runs.info(**hparams), scratch)


def test_a_trial_in_which_all_is_well_is_passed_without_a_word(tmp_path: Path) -> None:
    assert found(OneVarTrial, tmp_path) == []


def test_check_with_gradient_aggregation_trains_until_a_step(tmp_path: Path) -> None:
    assert found(OneVarTrial, tmp_path, aggregation=4) == []


def test_weights_that_never_move_are_found(tmp_path: Path) -> None:
    class Still(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = ((batch - self.model(batch)) ** 2).mean()
            self.context.backward(loss)
            return {"loss": loss}

    (notice,) = found(Still, tmp_path)
    assert notice.startswith(
        "training 2 batches changed no weight: does the trial step its optimizer (context.step_opt"
    )


def test_a_training_metric_that_is_no_number_is_named(tmp_path: Path) -> None:
    class Vector(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            return super().train_batch(batch, epoch_idx, batch_idx) | {"each": torch.zeros(3)}

    with pytest.warns(UserWarning, match="'each'"):
        (notice,) = found(Vector, tmp_path)
    assert "metric 'each' is a Tensor of shape (3,)" in notice
    assert notice.endswith("; it is left out of the training reports")


def test_first_trial_has_left_when_the_second_is_built(tmp_path: Path) -> None:
    """Two of a large one would not fit into the memory."""
    alive: list[int] = []
    models: list[weakref.ref[Any]] = []

    class Counts(OneVarTrial):
        def __init__(self, context: Any) -> None:
            alive.append(sum(model() is not None for model in models))
            super().__init__(context)
            models.append(weakref.ref(self.model))

    assert found(Counts, tmp_path) == []
    assert alive == [0, 0]


class Average(OneVarTrial):
    """Keeps a moving average of its weights, as many do, and other things outside checkpoints."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.ema = copy.deepcopy(self.model)
        self.model.register_buffer("center", torch.zeros(1), persistent=False)
        self.model.register_buffer("scale", torch.ones(1), persistent=False)
        self.steps = 0

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        metrics = super().train_batch(batch, epoch_idx, batch_idx)
        with torch.no_grad():
            self.ema.weight.lerp_(self.model.weight, 0.1)
            self.model.center += 1
        self.steps += 1
        return metrics


def test_changing_state_that_no_checkpoint_holds_is_named(tmp_path: Path) -> None:
    (notice,) = found(Average, tmp_path)
    assert notice.startswith(
        "training changes trial.steps, trial.model.center, trial.ema.weight, which no checkpoint"
        " holds"
    )


def test_state_that_a_callback_carries_is_not_named(tmp_path: Path) -> None:
    class Carried(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.mean = torch.zeros(1)

        def build_callbacks(self) -> Any:
            trial = self

            class Carry(PyTorchCallback):
                def state_dict(self) -> Any:
                    return {"mean": trial.mean}

                def load_state_dict(self, state: Any) -> None:
                    trial.mean = state["mean"]

            return {"carry": Carry()}

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.mean += 1
            return super().train_batch(batch, epoch_idx, batch_idx)

    assert found(Carried, tmp_path) == []


class NoMetric(OneVarTrial):
    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": 1.0}


class Nothing(OneVarTrial):
    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return None


class Unsaved(OneVarTrial):
    def build_callbacks(self) -> Any:
        class Keeps(PyTorchCallback):
            def state_dict(self) -> Any:
                return {"file": object()}

        return {"keeps": Keeps()}


@pytest.mark.parametrize(
    ("trial", "error", "said"),
    [
        (NoMetric, MetricError, "searcher.metric is 'val_loss', but the validation returned loss"),
        (Nothing, TrialError, "evaluate_batch returned NoneType"),
        (
            Unsaved,
            TrialError,
            "of the callback 'keeps' is object, which a checkpoint cannot hold safely",
        ),
    ],
)
def test_what_would_lose_a_training_at_its_end_fails_before_it(
    tmp_path: Path, trial: type, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        found(trial, tmp_path)

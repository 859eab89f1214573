"""Making a trial: both styles, and the one of 0.12."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import det_torch
from det_core import InvalidHP, TrialError
from det_testing import OneVar
from det_torch import (
    ClipGradsL2Norm,
    DataLoader,
    LRScheduler,
    PyTorchCallback,
    PyTorchTrial,
    reset_parameters,
)
from det_torch.build import build_trial
from det_torch.testing import OneVarTrial, Records


class Data(PyTorchTrial):
    """The data of the one-weight model."""

    def build_training_data_loader(self) -> Any:
        return DataLoader(Records([OneVar().x(n) for n in range(5)]), batch_size=1)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records([1.0, 2.0]), batch_size=2)


class Built(Data):
    """Gives its parts by methods."""

    def build_model(self) -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.context.get_hparam("lr"))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = ((self.model(batch) - batch) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"weight": self.model.weight.sum()}


class Oldest(Data):
    """As it was written for 0.12: it returns a loss, and det does the rest."""

    def __init__(self, context: Any) -> None:
        self.hparams = context.get_hparams()

    def build_model(self) -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:  # type: ignore[override]
        return torch.optim.SGD(model.parameters(), lr=self.hparams["lr"])

    def train_batch(self, batch: Any, model: Any, epoch_idx: int, batch_idx: int) -> Any:  # type: ignore[override]
        return {
            "loss": ((model(batch) - batch) ** 2).mean(),
            "epoch": epoch_idx,
            "batch": batch_idx,
        }

    def evaluate_batch(self, batch: Any, model: Any) -> dict[str, Any]:
        return {"weight": model.weight.sum()}


HPARAMS = {"lr": 0.03, "global_batch_size": 1}


@pytest.mark.parametrize("trial", [OneVarTrial, Built, Oldest])
def test_every_style_trains_the_same(lab: Any, trial: type[PyTorchTrial]) -> None:
    ran = lab(trial, 7, hparams=HPARAMS)
    assert ran.losses == pytest.approx({n + 1: OneVar().loss(n) for n in range(7)}, rel=1e-5)
    assert ran.validation[7]["weight"] == pytest.approx(OneVar().weight(7), rel=1e-5)


@pytest.mark.parametrize("trial", [OneVarTrial, Built, Oldest])
def test_every_style_aggregates_and_resumes(lab: Any, trial: type[PyTorchTrial]) -> None:
    config = {"optimizations": {"aggregation_frequency": 2}}
    whole, first = (
        lab(trial, 8, hparams=HPARAMS, config=config),
        lab(trial, 3, hparams=HPARAMS, config=config),
    )
    second = lab(trial, 8, hparams=HPARAMS, config=config, checkpoint=first.checkpoints[3])
    assert {**first.losses, **second.losses} == whole.losses
    assert whole.validation[8]["weight"] == pytest.approx(
        OneVar().weight(8, aggregation=2), rel=1e-5
    )


def test_the_oldest_style_gets_epoch_and_batch_behind_the_model(lab: Any) -> None:
    ran = lab(Oldest, 6, hparams=HPARAMS)
    assert [(m["epoch"], m["batch"]) for m in ran.training.values()] == [
        *((0, n) for n in range(5)),
        (1, 5),
    ]


def test_the_oldest_style_may_return_its_loss_alone(lab: Any) -> None:
    class Bare(Oldest):
        def train_batch(self, batch: Any, net: Any, epoch_idx: int, batch_idx: int) -> Any:  # type: ignore[override]
            return ((net(batch) - batch) ** 2).mean()

        def evaluate_batch(self, batch: Any, net: Any) -> dict[str, Any]:
            return {"weight": net.weight.sum()}

    assert lab(Bare, 3, hparams=HPARAMS).validation[3]["weight"] == pytest.approx(
        OneVar().weight(3), rel=1e-5
    )


def test_oldest_style_has_full_evaluation_and_clipping_callbacks(lab: Any) -> None:
    class Full(Oldest):
        evaluate_batch = PyTorchTrial.evaluate_batch  # type: ignore[assignment]

        def evaluate_full_dataset(self, data_loader: Any, model: Any) -> dict[str, Any]:
            return {"weight": model.weight.sum(), "batches_there": len(list(data_loader))}

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"clip": ClipGradsL2Norm(1.0)}

    validation = lab(Full, 1, hparams=HPARAMS).validation[1]
    assert (validation["weight"], validation["batches_there"]) == (pytest.approx(0.03, rel=1e-4), 1)


def test_the_oldest_style_leaves_backward_and_step_to_det(lab: Any) -> None:
    class Both(Oldest):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.context = context

        def train_batch(self, batch: Any, model: Any, epoch_idx: int, batch_idx: int) -> Any:  # type: ignore[override]
            loss = model(batch).sum()
            self.context.backward(loss)
            return loss

    with pytest.raises(
        TrialError,
        match=r"only returns its loss, which det follows; to call backward and step_optimizer",
    ):
        lab(Both, 1, hparams=HPARAMS)


@pytest.mark.parametrize(
    ("returned", "kind"), [({"error": 1}, "NoneType"), ({"loss": 0.5}, "float"), (None, "NoneType")]
)
def test_the_oldest_style_needs_a_loss(lab: Any, returned: Any, kind: str) -> None:
    class Lossless(Oldest):
        def train_batch(self, batch: Any, model: Any, epoch_idx: int, batch_idx: int) -> Any:  # type: ignore[override]
            return returned

    with pytest.raises(
        TrialError,
        match=rf"^train_batch returned {kind} as its loss; return a tensor, or a dict that holds",
    ):
        lab(Lossless, 1, hparams=HPARAMS)


def test_the_oldest_style_runs_in_half_precision(lab: Any) -> None:
    ran = lab(Oldest, 40, hparams=HPARAMS, config={"optimizations": {"precision": "fp16"}})
    assert ran.validation[40]["weight"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", ["build_lr_scheduler", "create_lr_scheduler"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_built_scheduler_is_stepped(lab: Any, name: str, wrapped: bool) -> None:
    """As its LRScheduler says; every epoch, if it is a plain one."""

    def build(self: Any, optimizer: Any) -> Any:
        raw = StepLR(optimizer, 1, gamma=0.5)
        return LRScheduler(raw, LRScheduler.StepMode.STEP_EVERY_BATCH) if wrapped else raw

    trial = type("Trial", (Built,), {name: build})
    with lab.adapter(trial, hparams=HPARAMS) as adapter:
        assert isinstance(adapter.trial.lr_scheduler, LRScheduler)
        assert adapter.context.lr_schedulers == [adapter.trial.lr_scheduler]
    ran = lab(trial, 5, hparams=HPARAMS)
    (saved,) = lab.contents(ran.checkpoints[5])["lr_schedulers_state_dict"]
    assert saved["last_epoch"] == (5 if wrapped else 1)


def test_a_built_scheduler_may_be_none(lab: Any) -> None:
    class Without(Built):
        def build_lr_scheduler(self, optimizer: Any) -> Any:
            return None

    with lab.adapter(Without, hparams=HPARAMS) as adapter:
        assert adapter.context.lr_schedulers == []


def test_the_styles_may_be_mixed(lab: Any) -> None:
    """A model of `__init__`, and a method that builds its optimizer."""

    class Mixed(Built):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.model = context.wrap_model(super().build_model())

        def build_model(self) -> nn.Module:
            raise AssertionError("there is a model already")

        def build_optimizer(self) -> Any:  # type: ignore[override]
            return super().build_optimizer(self.model)

    assert lab(Mixed, 2, hparams=HPARAMS).validation[2]["weight"] == pytest.approx(
        OneVar().weight(2), rel=1e-5
    )


def test_helpers_of_those_names_are_not_called_again(lab: Any) -> None:
    """Trials that wrap what methods of their own build."""
    calls: list[str] = []

    class Helping(Built):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.model = context.wrap_model(self.build_model())
            self.optimizer = context.wrap_optimizer(self.build_optimizer(self.model))

        def build_model(self) -> nn.Module:
            calls.append("model")
            return super().build_model()

        def build_optimizer(self, model: nn.Module) -> Any:
            calls.append("optimizer")
            return super().build_optimizer(model)

    lab(Helping, 1, hparams=HPARAMS)
    assert calls == ["model", "optimizer"]


def test_a_trial_that_forgets_its_context_is_given_it(lab: Any) -> None:
    class Forgetting(Built):
        def __init__(self, context: Any) -> None:
            pass

    lab(Forgetting, 1, hparams=HPARAMS)


class NoModel(OneVarTrial):
    build_model = None  # that of the kit's makes one

    def __init__(self, context: Any) -> None:
        self.context = context


class NoOptimizer(OneVarTrial):
    def __init__(self, context: Any) -> None:
        self.model = context.wrap_model(nn.Linear(1, 1))


class NoEvaluation(OneVarTrial):
    evaluate_batch = PyTorchTrial.evaluate_batch


class MisspelledEvaluation(NoEvaluation):
    def evaluate_bach(self, batch: Any) -> dict[str, Any]:
        return {}


class PluralEvaluation(NoEvaluation):
    def evaluate_batches(self, batch: Any) -> dict[str, Any]:
        return {}


class TwoEvaluations(OneVarTrial):
    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (
            NoModel,
            (
                "NoModel wrapped no model; pass it through context.wrap_model(), or define"
                " build_model()"
            ),
        ),
        (
            NoOptimizer,
            (
                "NoOptimizer wrapped no optimizer; pass it through context.wrap_optimizer(), or"
                " define build_optimizer()"
            ),
        ),
        (
            NoEvaluation,
            (
                "NoEvaluation defines neither evaluate_batch nor evaluate_full_dataset; define"
                " exactly one of them"
            ),
        ),
        (
            MisspelledEvaluation,
            (
                "MisspelledEvaluation defines neither evaluate_batch nor evaluate_full_dataset;"
                " define exactly one of them; it has 'evaluate_bach', did you mean"
                " 'evaluate_batch'?"
            ),
        ),
        (
            PluralEvaluation,
            (
                "PluralEvaluation defines neither evaluate_batch nor evaluate_full_dataset; define"
                " exactly one of them; it has 'evaluate_batches', did you mean 'evaluate_batch'?"
            ),
        ),
        (
            TwoEvaluations,
            (
                "TwoEvaluations defines both evaluate_batch and evaluate_full_dataset; define"
                " exactly one of them"
            ),
        ),
        (Data, "Data does not define train_batch; every PyTorchTrial must"),
    ],
)
def test_a_trial_that_lacks_a_part_is_told_which(
    lab: Any, trial: type[PyTorchTrial], message: str
) -> None:
    with pytest.raises(TrialError) as refusal, lab.adapter(trial):
        pass
    assert str(refusal.value) == message


def test_arguments_of_the_trials_own_are_passed_on(lab: Any) -> None:
    class Own(OneVarTrial):
        def __init__(self, context: Any, width: int, depth: int = 1) -> None:
            super().__init__(context)
            self.size = (width, depth)

    assert build_trial(Own, lab.context(), width=3, depth=2).size == (3, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "where", ["__init__", "train_batch", "evaluate_batch", "build_training_data_loader"]
)
def test_hyperparameters_that_cannot_work_are_said_so_anywhere(lab: Any, where: str) -> None:
    def refuse(self: Any, *args: Any) -> Any:
        raise InvalidHP("width and depth are too much")

    with pytest.raises(InvalidHP, match="too much"):
        lab(type("Trial", (OneVarTrial,), {where: refuse}), 2)


def test_parameters_are_drawn_anew_in_every_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    before = [p.clone() for p in model.parameters()]
    reset_parameters(model)
    assert not any(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


def test_no_message_asks_for_a_method_that_nothing_calls() -> None:
    """Determined counted records by it, for a line of its log."""
    sources = Path(det_torch.__file__).parent.rglob("*.py")
    assert [
        file for file in sources if "get_batch_length" in file.read_text(encoding="utf-8")
    ] == []

"""What the check before training finds in a PyTorchTrial."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import time
import weakref
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Sampler

from det_core import MetricError, Plugins, TrialError
from det_core.config import parse
from det_node.first_check import check
from det_testing import OneVar, Runs
from det_torch import (
    ClipGradsL2Norm,
    DataLoader,
    LRScheduler,
    MetricReducer,
    PyTorchCallback,
    PyTorchTrial,
    _hooks,
)
from det_torch.testing import OneVarTrial, StrictTrial


def found(
    trial: type, tmp_path: Path, ranges: dict[str, Any] | None = None, **hparams: Any
) -> list[str]:
    plugins = Plugins(strict=True)
    plugins.register(_hooks, "torch")
    runs = Runs(plugins, trial, tmp_path / "runs")
    scratch = tmp_path / "check"
    scratch.mkdir(exist_ok=True)
    info = runs.info(**hparams)
    if ranges is not None:
        spaces = parse({"entrypoint": "x:X", "hyperparameters": ranges}).config.hyperparameters
        info = replace(info, config=msgspec.structs.replace(info.config, hyperparameters=spaces))
    return check(runs.framework, trial, info, scratch)


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


class ByName(OneVarTrial):
    """Reads one hyperparameter by its name."""

    def __init__(self, context: Any) -> None:
        PyTorchTrial.__init__(self, context)
        self.settings = OneVar(lr=context.get_hparam("lr"))
        self.model = context.wrap_model(self.build_model())
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=self.settings.lr)
        )


def test_a_range_that_the_trial_does_not_read_is_named(tmp_path: Path) -> None:
    """Unless it reads all hyperparameters at once. Constants are not named."""
    spread = {"type": "double", "minval": 0.01, "maxval": 0.02}
    ranges = {"lr": spread, "momentum": spread, "net": {"dropout": spread}}
    hparams = {"lr": 0.01, "momentum": 0.01, "net": {"dropout": 0.01}, "label": 3}
    (notice,) = found(ByName, tmp_path, ranges, **hparams)
    assert notice.startswith(
        "the trial does not read hyperparameters.momentum, hyperparameters.net, although values are"
        " drawn: read each with context.get_hparam('momentum'), or "
    )
    assert found(OneVarTrial, tmp_path, ranges, **hparams) == []


@pytest.mark.parametrize(
    "read",
    [
        lambda hparams: {**hparams},
        dict,
        lambda hparams: hparams | {},
        copy.deepcopy,
        copy.copy,
        list,
        lambda hparams: [*hparams.values()],
        json.dumps,
        lambda hparams: hparams.get("momentum"),
    ],
)
def test_a_range_that_is_read_in_any_way_is_not_named(tmp_path: Path, read: Any) -> None:
    class Reads(ByName):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            read(context.run.hparams)

    ranges = {"momentum": {"type": "double", "minval": 0.01, "maxval": 0.02}}
    assert found(Reads, tmp_path, ranges, lr=0.01, momentum=0.01) == []


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
        "training changes trial.model.center, trial.ema.weight, trial.steps, which no checkpoint"
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


class Own:
    """Numbers of an object of the user's own."""

    def __init__(self) -> None:
        self.count, self.best = 0, None

    def __call__(self) -> None:
        self.count += 1


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self._seen = torch.nn.Parameter(torch.zeros(1, 1)), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._seen += self.training
        return x @ self.weight


def trial_of(make: Any, change: Any) -> type[OneVarTrial]:
    """Return a trial that holds what `make` returns, and changes it with each batch."""

    class Holds(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.held = make(self)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            metrics = super().train_batch(batch, epoch_idx, batch_idx)
            change(self, batch_idx)
            return metrics

    return Holds


def add_label(trial: Any, number: int) -> None:
    if number == 0:
        trial.held["cat"] = len(trial.held)


def set_held(trial: Any, value: Any) -> None:
    trial.held = value


def step_held(trial: Any, number: int) -> None:
    trial.context.backward(trial.model(torch.ones(1, 1)).sum())
    trial.context.step_optimizer(trial.held)


def scale_held(trial: Any, number: int) -> None:
    trial.held.scale(torch.ones(1))
    trial.held.update(2.0 + number)


ADAM = "trial.held (give it to context.wrap_optimizer)"
RATES = "trial.held (give it to context.wrap_lr_scheduler)"
SCALER = "trial.held (give it to context.wrap_scaler)"
LOST: dict[str, tuple[Any, Any, str]] = {
    "optimizer": (lambda t: torch.optim.Adam(t.model.parameters()), step_held, ADAM),
    "scheduler": (
        lambda t: torch.optim.lr_scheduler.StepLR(t.optimizer, 1),
        lambda t, n: t.held.step(),
        RATES,
    ),
    "scaler": (lambda t: torch.amp.GradScaler("cpu"), scale_held, SCALER),
    "labels": (lambda t: {}, add_label, "trial.held"),
    "numbers": (lambda t: [0, {"a": 1.5}], lambda t, n: t.held[1].update(a=n), "trial.held"),
    "set": (lambda t: {"a"}, lambda t, n: t.held.add(n), "trial.held"),
    "text": (lambda t: "first", lambda t, n: set_held(t, "later"), "trial.held"),
    "nothing at first": (lambda t: None, set_held, "trial.held"),
    "object": (lambda t: Own(), lambda t, n: t.held(), "trial.held.count"),
    "object in a list": (lambda t: [Own()], lambda t, n: t.held[0](), "trial.held[0].count"),
    "number of a module": (
        lambda t: Counting(),
        lambda t, n: t.held(torch.ones(1, 1)),
        "trial.held._seen",
    ),
    "queue": (
        lambda t: deque(maxlen=4),
        lambda t, n: t.held.append((torch.ones(2), n)),
        "trial.held[]",
    ),
    "numpy's generator": (
        lambda t: np.random.default_rng(0),
        lambda t, n: t.held.random(),
        "trial.held",
    ),
    "torch's generator": (
        lambda t: torch.Generator().manual_seed(0),
        lambda t, n: torch.rand(1, generator=t.held),
        "trial.held",
    ),
}


@pytest.mark.parametrize(("make", "change", "name"), LOST.values(), ids=LOST)
def test_each_kind_of_state_that_is_lost_is_named(
    tmp_path: Path, make: Any, change: Any, name: str
) -> None:
    (notice,) = found(trial_of(make, change), tmp_path)
    assert notice.startswith(f"training changes {name}, which no checkpoint holds: ")


def test_state_of_callbacks_that_is_lost_is_named(tmp_path: Path) -> None:
    """Also what a validation changes, such as the best metric so far."""

    class Patience(PyTorchCallback):
        def __init__(self, trial: Any) -> None:
            self.trial, self.best, self.waited, self.steps = trial, None, [0], 0

        def on_before_optimizer_step(self, parameters: Any) -> None:
            self.steps += 1

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            self.best = metrics["val_loss"]
            self.waited[0] += 1

    class Keeps(Patience):
        """Forgets one of three."""

        def state_dict(self) -> dict[str, Any]:
            return {"best": self.best, "steps": self.steps}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.best, self.steps = state_dict["best"], state_dict["steps"]

    class Patient(OneVarTrial):
        def build_callbacks(self) -> Any:
            return {"stop": Patience(self), "keeps": Keeps(self)}

    (notice,) = found(Patient, tmp_path)
    assert notice.startswith(
        "training changes callback 'stop'.best, callback 'stop'.waited, callback 'stop'.steps,"
        " callback 'keeps'.waited, which no checkpoint holds"
    )


class Mean(MetricReducer):
    def __init__(self) -> None:
        self.values: list[float] = []

    def update(self, value: float) -> None:
        self.values.append(value)

    def reset(self) -> None:
        self.values = []

    def per_slot_reduce(self) -> Any:
        return self.values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return sum(map(sum, per_slot_metrics))


class Lazy(torch.nn.Module):
    """Has a layer without a shape, and a cache, until its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.cache = torch.nn.LazyLinear(1), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cache is None:
            self.cache = torch.ones(1)
        out: torch.Tensor = self.linear(x * self.cache)
        return out


class Leveled(Dataset[torch.Tensor]):
    level = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1) + self.level


class Drawn(Sampler[int]):
    """Has a generator, of which det draws the order of an epoch again in a resumed run."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return iter(self.generator.permutation(8).tolist())


class Well(OneVarTrial):
    """Holds what a checkpoint has, what a restart makes again, and what only measures."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=4.0))
        self.model = context.wrap_model(Lazy())
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))
        warm, step = (
            torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=1),
            torch.optim.lr_scheduler.StepLR(self.optimizer, 1),
        )
        both = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [warm, step], [1])
        self.rates = {"warm": warm, "step": step, "both": both}
        self.parts = [self.model, self.optimizer, {"reducer": Mean()}]
        context.wrap_lr_scheduler(both, LRScheduler.StepMode.STEP_EVERY_BATCH)
        self.mean = context.wrap_reducer(Mean(), "mean")
        self.log, self.started, self.last = logging.getLogger("trial"), time.time(), 0.0
        self.masks: dict[int, torch.Tensor] = {}
        self.data, self.generator = Leveled(), torch.Generator()
        self.order = np.random.default_rng(0)
        self.cycle: list[Any] = []
        self.cycle.append(self.cycle)
        self.frozen = torch.nn.Linear(1, 1)
        self.correct = 0

    def build_callbacks(self) -> Any:
        return {"clip": ClipGradsL2Norm(1.0)}

    def build_training_data_loader(self) -> Any:
        return DataLoader(self.data, 2, sampler=Drawn(self.order), generator=self.generator)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(self.data, 2)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.masks.setdefault(len(batch), torch.ones(1))
        self.frozen.eval()
        loss = (self.model(batch) ** 2).mean()
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        self.mean.update(loss.item())
        self.data.level, self.last = batch_idx, time.perf_counter()
        self.log.warning("trained")
        self.model.linear.eval()
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        self.correct += 1
        self.mean.update(1.0)
        return {"val_loss": self.model(batch).mean()}


def test_state_that_needs_no_checkpoint_is_not_named(tmp_path: Path) -> None:
    assert found(Well, tmp_path) == []


def test_the_strict_trial_passes_its_check(tmp_path: Path) -> None:
    class Alone(StrictTrial):
        num_workers = 0

    assert found(Alone, tmp_path) == []


def digits_trial() -> type:
    """Return the trial of the example `digits_torch`, with the metric that is wanted here."""
    path = Path(__file__).parents[2] / "examples/digits_torch/model_def.py"
    spec = importlib.util.spec_from_file_location("digits_torch_model_def", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written: Any = module.DigitsTrial

    class Measured(written):
        def evaluate_batch(self, batch: Any) -> Any:
            return {"val_loss": super().evaluate_batch(batch)["validation_loss"]}

    return Measured


PROGRAMS = ("contrastive", "language_model", "lora", "unet", "wgan")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["example", *PROGRAMS])
def test_no_state_of_a_whole_program_is_named(tmp_path: Path, program: str) -> None:
    if program == "example":
        trial = digits_trial()
    else:
        trial = importlib.import_module(f"tests.contract.programs.torch_{program}").Trial
    hparams = {"lr": 0.1, "momentum": 0.9, "hidden": 8, "dropout": 0.1, "workers": 0}
    assert found(trial, tmp_path, **hparams) == []


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

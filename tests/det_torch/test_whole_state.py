"""The state of a run, kind by kind.

A run that is cut and resumed ends as one that is left alone, and as PyTorch alone would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler, Subset, TensorDataset

from det_core import Every, Schedule, TrialError
from det_core.checkpoint import read_checkpoint
from det_testing import differences
from det_torch import (
    DataLoader,
    LRScheduler,
    PyTorchCallback,
    PyTorchTrial,
    TrainingStream,
    load_trial_from_checkpoint_path,
    state,
)
from det_torch.data._attributes import find_datasets, read_attributes, restore_attributes

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(3))
Y = X[:, :1] * 2 + torch.sin(X[:, 1:2])
EPOCH = 6
SCHEDULE = Schedule(report=Every(1), policy="none")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(6, 5), nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.backbone(x)))


class Whole(PyTorchTrial):
    """A small network on 24 records, six batches to an epoch, in their order."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(self.build())
        self.optimizer = context.wrap_optimizer(self.steps(self.model))

    def build(self) -> nn.Module:
        return Net()

    def steps(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def build_training_data_loader(self) -> Any:
        return DataLoader(TensorDataset(X, Y), 4)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(TensorDataset(X, Y), 4)

    def loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"val_loss": self.loss(batch)}


def contents_of(lab: Any, uuid: str) -> dict[str, Any]:
    with read_checkpoint(lab.storage, uuid) as (path, _):
        return state.load(path)


def goes_on_alike(lab: Any, trial: type, cuts: Sequence[int], length: int = 14, **more: Any) -> Any:
    """Compare a run that is cut and resumed with one that is not, and return the latter.

    All that is reported and saved is compared.
    """
    whole = lab(trial, length, **more)
    for cut in cuts:
        first = lab(trial, length, preempt_at=cut, **more)
        second = lab(trial, length, checkpoint=first.checkpoints[cut], **more)
        assert {**first.losses, **second.losses} == whole.losses, cut
        assert {**first.validation, **second.validation} == whole.validation, cut
        found = (
            contents_of(lab, second.checkpoints[length]),
            contents_of(lab, whole.checkpoints[length]),
        )
        assert differences(*found) == [], cut
    return whole


def plain(
    trial: type,
    length: int,
    step: Callable[..., Any],
    prepare: Callable[[Any], Any] = lambda model: None,
) -> Any:
    """Train as PyTorch's tutorials do, with the seed of `lab`.

    `step(model, optimizer, batch, number)` returns the loss.
    """
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    model = trial.build(None)  # type: ignore[attr-defined]
    optimizer = trial.steps(None, model)  # type: ignore[attr-defined]
    prepare(model)
    losses = {}
    for number in range(length):
        at = number * 4 % 24
        losses[number + 1] = step(model, optimizer, (X[at : at + 4], Y[at : at + 4]), number).item()
    return losses, model.state_dict()


def has_weights(lab: Any, ran: Any, weights: Any) -> bool:
    found = contents_of(lab, ran.checkpoints[max(ran.checkpoints)])["models_state_dict"][0]
    return not differences(dict(found), dict(weights))


# Flags of parameters and modules


class Frozen(Whole):
    """Its backbone is frozen, and thaws with epoch 1, as in fine-tuning.

    Its head's dropout ends there, too.
    """

    def build(self) -> nn.Module:
        net = Net()
        net.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(5, 1))  # type: ignore[assignment]
        net.backbone.requires_grad_(False)
        return net

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"thaw": Thaw(self.model)}


class Thaw(PyTorchCallback):
    def __init__(self, model: Any) -> None:
        self.model = model

    def on_training_start(self) -> None:
        self.model.backbone.requires_grad_(False)

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        if epoch_idx == 1:
            self.model.backbone.requires_grad_(True)
            self.model.head[0].eval()


def test_a_parameter_that_thaws_with_an_epoch_stays_thawed(lab: Any) -> None:
    """Resumed in the middle of the epoch, at its first and last batch, and before it."""
    whole = goes_on_alike(lab, Frozen, [5, 6, 7, 9, 12])

    def step(model: Any, optimizer: Any, batch: Any, number: int) -> Any:
        if number == EPOCH:
            model.backbone.requires_grad_(True)
            model.head[0].eval()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses, weights = plain(Frozen, 14, step)
    assert whole.losses == losses
    assert has_weights(lab, whole, weights)


def test_a_parameter_that_is_frozen_in_training_stays_frozen(lab: Any) -> None:
    class Freezing(Whole):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                self.model.backbone.requires_grad_(False)
            return super().train_batch(batch, epoch_idx, batch_idx)

    goes_on_alike(lab, Freezing, [3, 6], length=8)


def test_a_warm_start_takes_no_flags_of_another_trial(lab: Any) -> None:
    """Nor does a checkpoint of before, which has none, change what the trial made."""
    thawed = lab(Frozen, 8, preempt_at=7).checkpoints[7]
    flags: list[bool] = []

    class Watched(Frozen):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            flags.append(self.model.backbone.weight.requires_grad)
            return super().train_batch(batch, epoch_idx, batch_idx)

    lab(Watched, 1, checkpoint=thawed, trial_id=2)
    assert flags == [False]


# Versions of modules


class Turned(nn.Module):
    """Keeps its weights transposed since its version 2, and turns those of version 1 on loading."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 6) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w

    def _load_from_state_dict(
        self, saved: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        if local_metadata.get("version", 1) < 2:
            saved[prefix + "w"] = saved[prefix + "w"].t()
        super()._load_from_state_dict(saved, prefix, local_metadata, *rest)


class Versioned(Whole):
    def build(self) -> nn.Module:
        return nn.Sequential(Turned(), nn.Linear(6, 1))


def test_modules_are_loaded_as_of_the_version_that_saved_them(lab: Any) -> None:
    goes_on_alike(lab, Versioned, [2, 6], length=8)


def test_a_trial_is_loaded_as_of_the_version_that_saved_it(lab: Any) -> None:
    """For use without training."""
    ran = lab(Versioned, 2)
    with read_checkpoint(lab.storage, ran.checkpoints[2]) as (path, _):
        loaded: Any = load_trial_from_checkpoint_path(path, Versioned)
        (saved,) = state.load(path)["models_state_dict"]
    assert torch.equal(loaded.model[0].w, saved["0.w"])


@pytest.mark.parametrize("saved_prefixed", [True, False])
@pytest.mark.parametrize("wanted_prefixed", [True, False])
def test_versions_come_through_a_distributed_wrappers_prefix(
    saved_prefixed: bool, wanted_prefixed: bool
) -> None:
    def model(prefixed: bool) -> nn.Module:
        inner = nn.Sequential(Turned(), nn.BatchNorm1d(6))
        return nn.ModuleDict({"module": inner}) if prefixed else inner

    saved, wanted = model(saved_prefixed), model(wanted_prefixed)
    state.load_weights(wanted, saved.state_dict())
    assert not differences(list(saved.parameters()), list(wanted.parameters()))
    inner = getattr(wanted, "module", None) or wanted["module"] if wanted_prefixed else wanted  # type: ignore[index]
    plain_weights = dict(saved.state_dict())
    state.load_weights(
        wanted, plain_weights
    )  # of which nobody knows the version: as torch, of the oldest
    assert not torch.equal(next(iter(saved.parameters())), inner[0].w)  # type: ignore[index]


# NumPy


class Numbers(Whole):
    """Has NumPy's numbers wherever people have them.

    In rates, in a schedule, in a callback's state.
    """

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        rates = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda e: 0.5 * (1 + np.cos(np.pi * e / 20))
        )
        context.wrap_lr_scheduler(rates, LRScheduler.StepMode.STEP_EVERY_BATCH)

    def steps(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            model.parameters(), lr=np.float64(0.01), weight_decay=np.float32(0.1)
        )

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"numbers": Keeping()}


class Keeping(PyTorchCallback):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(5)
        self.sums: dict[Any, Any] = {
            np.int64(3): np.zeros((2, 3), np.float32),
            "best": np.float64(1.5),
        }

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        self.sums[np.int64(3)] += self.generator.random((2, 3), np.float32)
        self.sums["best"] = np.minimum(self.sums["best"], avg_metrics["loss"])

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums, "generator": self.generator.bit_generator.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sums, self.generator.bit_generator.state = state_dict["sums"], state_dict["generator"]


def test_numpy_numbers_in_rates_schedules_callbacks_are_kept(lab: Any) -> None:
    whole = goes_on_alike(lab, Numbers, [3, 6], length=8)
    saved = contents_of(lab, whole.checkpoints[8])
    assert type(saved["optimizers_state_dict"][0]["param_groups"][0]["weight_decay"]) is np.float32
    assert type(saved["lr_schedulers_state_dict"][0]["_last_lr"][0]) is np.float64
    assert [type(key) for key in saved["callbacks"]["numbers"]["sums"]] == [np.int64, str]


# Buffers that a module assigns


class Centre(nn.Module):
    """As in DINO: each step gives the buffer a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x - self.centre)
        if self.training:
            self.centre = self.centre * 0.9 + x.mean(0) * 0.1
        return out


def test_a_buffer_that_is_assigned_is_saved_as_it_is_then(lab: Any) -> None:
    class Centred(Whole):
        def build(self) -> nn.Module:
            return Centre()

    goes_on_alike(lab, Centred, [2, 6], length=8)


class Lazily(nn.Module):
    """Makes its statistics with the first batch, and its first layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(1)
        self.register_buffer("centre", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            mean = x.mean(0)
            self.centre = mean if self.centre is None else self.centre * 0.9 + mean * 0.1
        out: torch.Tensor = self.linear(x - self.centre)
        return out


class Renamed(nn.Module):
    """Compiled, with a normalized weight, tied layers, and statistics of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.again = self.first
        self.norm = torch.compile(nn.BatchNorm1d(6), backend="eager")
        self.last = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.again(self.first(x))))
        return out


@pytest.mark.parametrize("model", [Lazily, pytest.param(Renamed, marks=pytest.mark.slow)])
def test_models_that_build_themselves_oddly_go_on(lab: Any, model: type[nn.Module]) -> None:
    class Odd(Whole):
        def build(self) -> nn.Module:
            return model()

        def steps(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    goes_on_alike(lab, Odd, [2, 6], length=8)


# What training adds to a model or removes from it


class Stored(PyTorchCallback):
    """Changes the trial's model with epoch 1."""

    change: Callable[[Any], None]

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        if epoch_idx == 1:
            type(self).change(self.trial.model)


def changing(change: Callable[[Any], None], callback: type[Stored] = Stored) -> type[Whole]:
    class Changed(Whole):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"change": type("Change", (callback,), {"change": staticmethod(change)})(self)}

    return Changed


class LowRank(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.zeros(inner.in_features, 2))
        self.up = nn.Parameter(torch.zeros(2, inner.out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + x @ self.down @ self.up
        return out


def add_layer(net: Any) -> None:
    net.second = nn.Linear(5, 1)


def adapt(net: Any) -> None:
    net.backbone = LowRank(net.backbone)


def widen(net: Any) -> None:
    net.backbone, net.head = nn.Linear(6, 7), nn.Linear(7, 1)


def take_bias(net: Any) -> None:
    net.head.bias = None


def add_buffer(net: Any) -> None:
    net.head.register_buffer("seen", torch.zeros(2))


def normalize(net: Any) -> None:
    nn.utils.parametrizations.weight_norm(net.head)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (add_layer, "has gained second.bias, second.weight"),
        (
            adapt,
            "has lost backbone.bias, backbone.weight and has gained backbone.down,"
            " backbone.inner.bias, backbone.inner.weight and 1 more",
        ),
        (widen, "has another shape of backbone.bias, backbone.weight, head.weight"),
        (take_bias, "has lost head.bias"),
        (add_buffer, "has gained head.seen"),
        (
            normalize,
            "has gained head.parametrizations.weight.original0,"
            " head.parametrizations.weight.original1 and has lost head.weight",
        ),
    ],
)
def test_a_model_that_training_changes_is_refused_at_a_save(
    lab: Any, change: Callable[[Any], None], what: str
) -> None:
    """At the first one after the change, not at the restart."""
    lab(changing(change), EPOCH)
    with pytest.raises(TrialError) as refused:
        lab(changing(change), EPOCH + 1)
    assert str(refused.value) == (
        f"since the model Net was built, it {what}, so that a restarted run could not load this"
        " checkpoint; make all layers, parameters and buffers in __init__ in their final shapes,"
        " with requires_grad off until they train, or change the model again in"
        " on_checkpoint_load_start of one of the trial's callbacks"
    )


def test_a_model_that_is_wrapped_in_training_is_refused(lab: Any) -> None:
    class Late(Whole):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 1:
                self.context.wrap_model(nn.Linear(6, 1))
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(TrialError, match=r"^wrap_model\(\) got Linear in training.*__init__$"):
        lab(Late, 3)


def test_a_callback_may_change_a_model_again_before_it_is_loaded(lab: Any) -> None:
    class Again(Stored):
        def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
            if "second.weight" in checkpoint["models_state_dict"][0]:
                add_layer(self.trial.model)

    goes_on_alike(lab, changing(add_layer, Again), [5, 7], length=9)


def test_a_model_that_loads_itself_may_grow(lab: Any) -> None:
    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(0, 6))

        def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
            self.seen = state[f"{prefix}seen"].clone()

    class Remembering(Net):
        def __init__(self) -> None:
            super().__init__()
            self.memory = Memory()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.memory.seen = torch.cat([self.memory.seen, x])
            return super().forward(x)

    class Growing(Whole):
        def build(self) -> nn.Module:
            return Remembering()

    goes_on_alike(lab, Growing, [2], length=4)


def test_what_no_wrapped_model_saves_begins_again(lab: Any) -> None:
    """Buffers that are not persistent, models that are not wrapped, and attributes of the trial."""
    seen: list[tuple[float, float, int]] = []

    class Forgetful(Whole):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.model.register_buffer("passing", torch.zeros(1), persistent=False)
            self.average, self.count = nn.Linear(1, 1), 0
            nn.init.zeros_(self.average.weight)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            seen.append((self.model.passing.item(), self.average.weight.item(), self.count))
            self.count += 1
            with torch.no_grad():
                self.model.passing.add_(1)
                self.average.weight.add_(1)
            return super().train_batch(batch, epoch_idx, batch_idx)

    first = lab(Forgetful, 4, preempt_at=2)
    lab(Forgetful, 4, checkpoint=first.checkpoints[2])
    assert seen == [(0.0, 0.0, 0), (1.0, 1.0, 1)] * 2


# The position


class Follows(PyTorchCallback):
    """Steps a plateau at each validation, by what it knows of the position."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        context = self.trial.context
        epoch = context.current_train_epoch() + context.is_epoch_end()
        self.trial.plateau.step(metrics["val_loss"] + context.current_train_batch() + epoch)


class Plateau(Whole):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.plateau = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0),
            LRScheduler.StepMode.MANUAL_STEP,
        )

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"follows": Follows(self)}


def test_a_validation_after_a_restart_knows_the_position(lab: Any) -> None:
    """A run that is paused where a validation is due begins the next one with it."""
    schedule = Schedule(report=Every(1), validate=Every(3), policy="none")
    goes_on_alike(lab, Plateau, [6], length=9, schedule=schedule)


# Groups of an optimizer


class Grown(Whole):
    """Gives its optimizer the backbone in epoch 1, with a rate of its own."""

    def steps(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"grow": Grow(self)}


class Grow(PyTorchCallback):
    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        if epoch_idx == 1:
            group = {
                "params": list(self.trial.model.backbone.parameters()),
                "lr": 0.001,
                "nesterov": True,
            }
            self.trial.optimizer.add_param_group(group)


def test_a_group_that_is_added_in_training_is_made_again(lab: Any) -> None:
    whole = goes_on_alike(lab, Grown, [5, 6, 8, 12])

    def step(model: Any, optimizer: Any, batch: Any, number: int) -> Any:
        if number == EPOCH:
            group = {"params": list(model.backbone.parameters()), "lr": 0.001, "nesterov": True}
            optimizer.add_param_group(group)
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses, weights = plain(Grown, 14, step)
    # until the backbone is stepped, its gradients add up in both
    assert whole.losses == losses
    assert has_weights(lab, whole, weights)


def test_a_warm_start_takes_no_groups_of_another_trial(lab: Any) -> None:
    """They are added by its own hooks again.

    What its first groups hold, and moments of their parameters, are taken up.
    """
    source = lab(Grown, 8).checkpoints[8]
    saved = contents_of(lab, source)
    whole = lab(Grown, 10, checkpoint=source, trial_id=2)
    first = lab(Grown, 10, checkpoint=source, trial_id=2, preempt_at=8)
    second = lab(Grown, 10, checkpoint=first.checkpoints[8], trial_id=2)
    assert {**first.losses, **second.losses} == whole.losses

    def start(model: Any, optimizer: Any) -> None:
        model.load_state_dict(saved["models_state_dict"][0])
        (names, _), of_optimizer = saved["optimizer_groups"][0], saved["optimizers_state_dict"][0]
        assert names == ["0.head.weight", "0.head.bias"]
        state = {index: of_optimizer["state"][index] for index in (0, 1)}
        optimizer.load_state_dict(
            {"state": state, "param_groups": of_optimizer["param_groups"][:1]}
        )

    def step(model: Any, optimizer: Any, batch: Any, number: int) -> Any:
        if number == 0:
            start(model, optimizer)
        if number == EPOCH:
            group = {"params": list(model.backbone.parameters()), "lr": 0.001, "nesterov": True}
            optimizer.add_param_group(group)
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses, weights = plain(Grown, 10, step)
    assert whole.losses == losses
    assert has_weights(lab, whole, weights)


def test_parameter_group_that_cannot_be_rebuilt_is_refused(lab: Any) -> None:
    class Stray(Whole):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 1:
                self.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(
        TrialError,
        match=r"^Adam was given a parameter in training that no wrapped model has.*wrap its model",
    ):
        lab(Stray, 3)


class Signs(torch.optim.Optimizer):
    """Keeps moments and weights in float32, a mask, and a bfloat16 count of parameters.

    Some are in a list.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["moment"], state["weights"] = (
                    torch.zeros_like(parameter, dtype=torch.float32),
                    [parameter.float()],
                )
                state["mask"] = torch.zeros_like(parameter, dtype=torch.bool)
                state["count"] = torch.zeros_like(parameter, dtype=torch.int64)
            state["mask"] ^= parameter.grad > 0
            state["count"] += state["mask"]
            state["moment"].lerp_(parameter.grad.float() / (1 + state["count"] % 3), 0.1)
            state["weights"][0] -= 0.05 * state["moment"]
            parameter.copy_(state["weights"][0])


class Halved(Whole):
    def build(self) -> nn.Module:
        return Net().bfloat16()

    def steps(self, model: nn.Module) -> torch.optim.Optimizer:
        return Signs(model.parameters())

    def loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(batch[0].bfloat16()).float(), batch[1])


def test_optimizer_state_keeps_types_other_than_its_parameters(lab: Any) -> None:
    """Which torch alone would make those of the parameters.

    Bits, masks and counts would be lost.
    """
    goes_on_alike(lab, Halved, [2, 6], length=8)


def test_a_parameter_of_another_type_gets_a_state_of_its_type(lab: Any) -> None:
    """As by torch: a trial in single precision begins with the state of one in half precision."""

    class Single(Whole):
        def steps(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Half(Single):
        def build(self) -> nn.Module:
            return Net().bfloat16()

        def loss(self, batch: Any) -> torch.Tensor:
            return nn.functional.mse_loss(self.model(batch[0].bfloat16()).float(), batch[1])

    first = lab(Half, 2)
    second = lab(Single, 2, checkpoint=first.checkpoints[2], trial_id=2)
    state = contents_of(lab, second.checkpoints[2])["optimizers_state_dict"][0]["state"]
    assert {each["momentum_buffer"].dtype for each in state.values()} == {torch.float32}


# The start of an epoch


class Levelled(Dataset[Any]):
    level = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return X[index] * (1 + self.level), Y[index]


class SetLevel(PyTorchCallback):
    """A curriculum: each epoch is harder. The dataset has the level, which det keeps."""

    def __init__(self, dataset: Levelled) -> None:
        self.dataset = dataset

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.dataset.level = epoch_idx


def curriculum(loader: Callable[..., Any]) -> type[Whole]:
    class Curriculum(Whole):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.dataset = Levelled()

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"level": SetLevel(self.dataset)}

        def build_training_data_loader(self) -> Any:
            return loader(self.dataset)

    return Curriculum


def harder(model: Any, optimizer: Any, batch: Any, number: int) -> Any:
    loss = nn.functional.mse_loss(model(batch[0] * (1 + number // EPOCH)), batch[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_data_set_changes_at_epoch_start_reach_its_first_batch(lab: Any, workers: int) -> None:
    """In worker processes, too, as with PyTorch alone, and after a resume within an epoch."""
    trial = curriculum(lambda dataset: TorchDataLoader(dataset, 4, num_workers=workers))
    whole = goes_on_alike(lab, trial, [6, 8])
    losses, weights = plain(trial, 14, harder)
    assert whole.losses == losses
    assert has_weights(lab, whole, weights)


def test_attributes_of_inner_data_sets_are_kept(lab: Any) -> None:
    """Those of the dataset of a subset. No other ones are set."""
    trial = curriculum(lambda dataset: TorchDataLoader(Subset(dataset, range(24)), 4))
    goes_on_alike(lab, trial, [8])
    datasets = find_datasets(Subset(Levelled(), [0]))
    first = read_attributes(datasets)
    odd = {"dataset": {"indices": [5]}, "dataset.dataset": {"level": [[1], 0]}}
    restore_attributes(datasets, odd, first)
    assert (datasets["dataset"].indices, datasets["dataset.dataset"].level) == ([0], 0)


class LevelledStream(IterableDataset[Any]):
    """Counts what it reads. `level` is set by a callback."""

    level = read = 0

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Any:
        for index in range(24):
            self.read += 1
            yield X[index] * (1 + self.level) + 0.01 * self.read, Y[index]


class SetLevelOften(SetLevel):
    """Changes the level within epochs, too, after the third batch of each."""

    trained = 0

    def on_before_optimizer_step(self, parameters: Any) -> None:
        self.trained += 1
        if self.trained % EPOCH == 3:
            self.dataset.level += 0.5

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.trained = state_dict["trained"]


@pytest.mark.filterwarnings("ignore:the training data .* has no state_dict")
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.process)])
def test_attributes_of_an_iterable_data_set_are_kept(lab: Any, workers: int) -> None:
    """At each position, those that a callback sets and those that reading changes."""

    class Curriculum(Whole):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.dataset: Any = LevelledStream()

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"level": SetLevelOften(self.dataset)}

        def build_training_data_loader(self) -> Any:
            return TorchDataLoader(self.dataset, 4, num_workers=workers)

    goes_on_alike(lab, Curriculum, [4, 6, 8, 10, 12])


@pytest.mark.filterwarnings("ignore:the training data .* has no state_dict")
def test_changed_attributes_of_other_iterables_are_named(lab: Any) -> None:
    class Batches:
        level, epoch = 0, 0

        def __len__(self) -> int:
            return EPOCH

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([(X[:4] * (1 + self.level), Y[:4])] * EPOCH)

    class Curriculum(Whole):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.dataset: Any = Batches()

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"level": SetLevel(self.dataset)}

        def build_training_data_loader(self) -> Any:
            return self.dataset

    saving = Schedule(report=Every(1), checkpoint=Every(4), policy="none")
    with pytest.warns(
        UserWarning, match=r"changes level of the training data \(Batches\)"
    ) as found:
        lab(Curriculum, 14, schedule=saving)
    assert sum("changes" in str(each.message) for each in found) == 1


@pytest.mark.process
def test_persistent_workers_keep_the_data_set_of_the_first_epoch(lab: Any) -> None:
    """As with PyTorch alone."""

    def loader(dataset: Any) -> Any:
        return TorchDataLoader(dataset, 4, num_workers=1, persistent_workers=True)

    easy, _ = plain(Whole, 8, lambda *step: harder(*step[:-1], 0))
    assert lab(curriculum(loader), 8).losses == easy


def test_the_epoch_is_known_where_it_starts(lab: Any) -> None:
    epochs: list[tuple[int, int, bool]] = []

    class Asking(PyTorchCallback):
        def __init__(self, context: Any) -> None:
            self.context = context

        def on_training_epoch_start(self, epoch_idx: int) -> None:
            context = self.context
            epochs.append((epoch_idx, context.current_train_epoch(), context.is_epoch_start()))

    class Asked(Whole):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"asking": Asking(self.context)}

    lab(Asked, 12)
    assert epochs == [(0, 0, True), (1, 1, True)]


# Generators that a data set keeps


class Noisy(Dataset[Any]):
    """Adds noise from a generator of each kind, one of them in a transform's attribute."""

    def __init__(self) -> None:
        self.generators = {
            "numpy": np.random.default_rng(0),
            "older": np.random.RandomState(1),
            "python": random.Random(2),
        }
        self.transform = Jitter()
        self.not_its_own = np.random.mtrand._rand

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        drawn = self.generators
        noise = drawn["numpy"].normal() + drawn["older"].normal() + drawn["python"].gauss(0, 1)
        return self.transform(X[index] + noise), Y[index]


class Jitter:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(6, generator=self.generator)


class Jittered(Whole):
    """Trains and validates on one data set."""

    def build_training_data_loader(self) -> Any:
        self.records = Noisy()
        return DataLoader(self.records, 4, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return TorchDataLoader(self.records, 4)


def test_generators_of_a_data_set_go_on_where_they_were(lab: Any) -> None:
    schedule = Schedule(report=Every(1), validate=Every(3), policy="none")
    goes_on_alike(lab, Jittered, [4, 6, 7], schedule=schedule)


def test_validations_do_not_move_the_generators_of_a_data_set(lab: Any) -> None:
    often = Schedule(report=Every(1), validate=Every(2), policy="none")
    assert lab(Jittered, 7, schedule=often).losses == lab(Jittered, 7, schedule=SCHEDULE).losses


def test_generators_in_worker_processes_are_named() -> None:
    def warning_of(records: Any, workers: int) -> str | None:
        data = DataLoader(records, 4, num_workers=workers)
        return TrainingStream(data, seed=0, rank=0, size=1).warning

    assert "(dataset.generators['numpy'])" in str(warning_of(Noisy(), 1))
    assert "(dataset[0].generator)" in str(warning_of([Jitter()] * 8, 1))
    assert warning_of(Noisy(), 0) is None
    records = [(index, Jitter()) for index in range(200)]
    assert warning_of(records, 1) is None


# Samplers that follow the losses


class Following(Sampler[int]):
    """Yields what the trial wants next, and notes how far training is when it is asked."""

    det_on_demand = True

    def __init__(self) -> None:
        self.trained, self.asked = 0, list[int]()

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Any:
        for _ in range(24):
            self.asked.append(self.trained)
            yield self.trained % 24


def following(sampler: Following) -> type[Whole]:
    class Follows(Whole):
        def build_training_data_loader(self) -> Any:
            return DataLoader(TensorDataset(X, Y), 4, sampler=sampler)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            metrics = super().train_batch(batch, epoch_idx, batch_idx)
            sampler.trained = batch_idx + 1
            return metrics

    return Follows


@pytest.mark.parametrize("on_demand", [True, False])
def test_on_demand_sampler_is_drawn_batch_by_batch(lab: Any, on_demand: bool) -> None:
    sampler = Following()
    sampler.det_on_demand = on_demand  # type: ignore[misc]
    lab(following(sampler), 5)
    assert sampler.asked[:20] == (
        [n for n in range(5) for _ in range(4)] if on_demand else [0] * 20
    )


def test_resumed_on_demand_sampler_is_reported_inexact(lab: Any) -> None:
    first = lab(following(Following()), 8, preempt_at=3)
    with pytest.warns(
        UserWarning, match="the sampler of the training data draws on demand: after a restart"
    ):
        lab(following(Following()), 8, checkpoint=first.checkpoints[3])

"""Mixed precision, and compiled models."""

from __future__ import annotations

import copy
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from det_core import TrialError
from det_torch import ClipGradsL2Norm, DataLoader, PyTorchCallback, PyTorchTrial
from det_torch.precision import Precision
from det_torch.testing import OneVarTrial, Records

CPU = torch.device("cpu")


class Seen(nn.Linear):
    """Notes the type that its product has."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.types: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.types.append(y.dtype)
        return y


class Line(PyTorchTrial):
    """Finds the line y = 3x + 1."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.prepare()
        self.model = context.wrap_model(Seen())
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.3))

    def prepare(self) -> None:
        pass

    def build_training_data_loader(self) -> Any:
        return DataLoader(Records([n / 16 for n in range(16)]), batch_size=4)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records([0.5]))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        output = self.model(batch)
        loss = ((output - 3 * batch - 1) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {
            "loss": loss,
            "half": self.model.types[-1] in (torch.float16, torch.bfloat16),
            "out": output.dtype.itemsize,
        }

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"y": self.model(batch).sum(), "half": self.model.types[-1] in (torch.float16, torch.bfloat16)}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_comes_by_configuration(lab: Any, precision: str) -> None:
    """The model computes in half precision in training and validation, gives fp32, and learns."""
    ran = lab(Line, 60, config={"optimizations": {"precision": precision}})
    assert {(m["half"], m["out"]) for m in ran.training.values()} == {(True, 4)}
    assert ran.validation[60]["half"] == 1
    assert ran.validation[60]["y"] == pytest.approx(2.5, abs=0.2)
    assert ("scaler_state_dict" in lab.contents(ran.checkpoints[60])) == (precision == "fp16")


def test_use_amp_is_fp16_with_a_scaler(lab: Any) -> None:
    class Amp(Line):
        def prepare(self) -> None:
            self.context.experimental.use_amp()

    ran = lab(Amp, 60)
    assert ran.training[60]["half"] == 1
    assert ran.validation[60]["y"] == pytest.approx(2.5, abs=0.2)
    assert lab.contents(ran.checkpoints[60])["scaler_state_dict"]["scale"] > 0


def test_a_step_that_overflows_is_left_out_and_the_scale_is_halved(lab: Any) -> None:
    class Overflowing(Line):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            before = self.model.weight.detach().clone()
            loss = (self.model(batch) ** 2).mean() * (float("inf") if batch_idx == 1 else 1.0)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            scale = self.context.precision.scaler.get_scale()
            return {"loss": loss, "moved": bool((self.model.weight != before).any()), "scale": scale}

    ran = lab(Overflowing, 3, config={"optimizations": {"precision": "fp16"}})
    assert [m["moved"] for m in ran.training.values()] == [True, False, True]
    assert [m["scale"] for m in ran.training.values()] == [65536, 65536, 32768]


def test_gradients_are_unscaled_before_they_are_clipped(lab: Any) -> None:
    norms: list[float] = []

    class Clipping(Line):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = (self.model(batch) ** 2).mean()
            self.context.backward(loss)
            self.context.step_optimizer(
                self.optimizer, clip_grads=lambda p: norms.append(nn.utils.clip_grad_norm_(p, 0.1))
            )
            return loss

    lab(Clipping, 4, config={"optimizations": {"precision": "fp16", "aggregation_frequency": 2}})
    assert len(norms) == 2
    assert all(norm < 100 for norm in norms)

    class ByCallback(Line):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"clip": ClipGradsL2Norm(0.1)}

    with lab.adapter(ByCallback, config={"optimizations": {"precision": "fp16"}}) as adapter:
        context, model = adapter.context, adapter.context.models[0]
        steps = []
        for batch in range(6):  # the first ones overflow
            before = model.weight.detach().clone()
            adapter.trial.train_batch(torch.ones(4, 1), 0, batch)
            context.precision.after_batch()
            steps.append((model.weight.detach() - before).abs().item())
    assert 0 < max(steps) <= 0.3 * 0.1 + 1e-6


def test_a_batch_without_a_step_leaves_the_scaler_alone(lab: Any) -> None:
    class Skipping(Line):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = (self.model(batch) ** 2).mean()
            if batch_idx % 2:
                self.context.backward(loss)
                self.context.step_optimizer(self.optimizer)
            return loss

    lab(Skipping, 4, config={"optimizations": {"precision": "fp16"}})


def test_a_scaler_of_the_trials_own_is_driven_by_the_trial_and_saved(lab: Any) -> None:
    class Own(Line):
        def prepare(self) -> None:
            self.scaler = self.context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                loss = ((self.model(batch) - 3 * batch - 1) ** 2).mean()
            self.context.backward(self.scaler.scale(loss))
            self.scaler.unscale_(self.optimizer)
            self.context.step_optimizer(self.optimizer, clip_grads=lambda p: None, scaler=self.scaler)
            self.scaler.update()
            return {"loss": loss, "scale": self.scaler.get_scale()}

    whole = lab(Own, 6)
    assert [m["scale"] for m in whole.training.values()] == [8, 16, 16, 32, 32, 64]
    first = lab(Own, 3)
    assert lab(Own, 6, checkpoint=first.checkpoints[3]).training[6] == whole.training[6]


def test_fp16_is_resumed_exactly(lab: Any) -> None:
    fp16 = {"optimizations": {"precision": "fp16", "aggregation_frequency": 2}}
    whole, first = lab(Line, 9, config=fp16), lab(Line, 5, config=fp16)
    assert lab(Line, 9, config=fp16, checkpoint=first.checkpoints[5]).losses[9] == whole.losses[9]


def test_a_scaler_on_one_side_only_is_said(lab: Any) -> None:
    fp16 = {"optimizations": {"precision": "fp16"}}
    plain, scaled = lab(Line, 1), lab(Line, 1, config=fp16)
    with pytest.warns(UserWarning, match="the trial has a gradient scaler, but the checkpoint has no state of one"):
        lab(Line, 2, config=fp16, checkpoint=plain.checkpoints[1])
    with pytest.warns(UserWarning, match="the trial has no gradient scaler, but the checkpoint has a state of one"):
        lab(Line, 2, checkpoint=scaled.checkpoints[1])


def test_there_is_one_scaler_and_it_comes_before_the_models(lab: Any) -> None:
    once = r"there is a gradient scaler already; use one of wrap_scaler\(\), experimental.use_amp\(\) and optimizations.precision"
    context = lab.context()
    context.wrap_scaler(torch.amp.GradScaler("cpu"))
    with pytest.raises(TrialError, match=once):
        context.wrap_scaler(torch.amp.GradScaler("cpu"))
    with pytest.raises(TrialError, match=once):
        context.experimental.use_amp()
    with pytest.raises(TrialError, match=once):
        lab.context(config={"optimizations": {"precision": "fp16"}}).wrap_scaler(torch.amp.GradScaler("cpu"))
    late = lab.context()
    late.wrap_model(nn.Linear(1, 1))
    with pytest.raises(TrialError, match=r"^wrap_scaler\(\) comes before wrap_model\(\); move it up$"):
        late.wrap_scaler(torch.amp.GradScaler("cpu"))
    with pytest.raises(TrialError, match=r"^experimental.use_amp\(\) comes before wrap_model\(\); move it up$"):
        late.experimental.use_amp()


def test_a_copy_of_a_model_computes_with_weights_of_its_own() -> None:
    """As those who average weights make one."""
    model = Seen()
    Precision("bf16", CPU).apply(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.weight.zero_()
        copied.bias.zero_()
    assert float(copied(torch.ones(1, 1))) == 0
    assert type(model).__name__ == "Seen"
    assert isinstance(model, Seen)
    assert list(model.state_dict()) == ["weight", "bias"]


@dataclass
class Output:
    logits: Any
    label: str


class Fancy(OrderedDict):  # type: ignore[type-arg]
    """A dict with attributes, as transformers has them."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        setattr(self, key, value)


Pair = namedtuple("Pair", "first second")


class Giving(nn.Module):
    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(torch.matmul(x, x))


@pytest.mark.parametrize(
    ("wrap", "tensor_of"),
    [
        (lambda t: t, lambda o: o),
        (lambda t: {"a": [t, (t,)]}, lambda o: o["a"][1][0]),
        (lambda t: Pair(t, "x"), lambda o: o.second and o.first),
        (lambda t: Output(t, "x"), lambda o: o.logits),
        (lambda t: Fancy(logits=t), lambda o: o.logits),
    ],
)
def test_outputs_come_back_in_fp32_in_whatever_they_are_held(wrap: Any, tensor_of: Any) -> None:
    model = Giving(wrap)
    plain = type(model(torch.ones(2, 2)))
    Precision("bf16", CPU).apply(model)
    output = model(torch.ones(2, 2))
    assert tensor_of(output).dtype is torch.float32
    assert type(output) is plain


def test_whole_numbers_stay_as_they_are() -> None:
    model = Giving(lambda t: t.argmax())
    Precision("bf16", CPU).apply(model)
    assert model(torch.ones(2, 2)).dtype is torch.int64


def test_an_output_of_an_unknown_type_is_named() -> None:
    class Odd:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

    model = Giving(Odd)
    Precision("bf16", CPU).apply(model)
    with pytest.warns(UserWarning, match="a model returned Odd, which stays in half precision"):
        assert model(torch.ones(2, 2)).tensor.dtype is torch.bfloat16


def test_apex_is_refused_with_what_to_use_instead(lab: Any) -> None:
    with pytest.raises(TrialError, match=r"apex is no longer developed; set optimizations.precision to fp16 or bf16"):
        lab.context().configure_apex_amp([], [])


@pytest.mark.slow
def test_a_compiled_model_trains_like_one_that_is_not(lab: Any) -> None:
    """`optimizations.compile: true`; the names in its checkpoint are the same."""
    plain = lab(OneVarTrial, 6)
    compiled = lab(OneVarTrial, 6, config={"optimizations": {"compile": True}})
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-5)
    assert list(lab.contents(compiled.checkpoints[6])["models_state_dict"][0]) == ["weight"]
    assert list(lab(OneVarTrial, 7, checkpoint=compiled.checkpoints[6]).losses) == [7]

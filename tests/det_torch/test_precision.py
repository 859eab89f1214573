"""Mixed precision, and compiled models."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from det_core import TrialError
from det_testing import OneVar
from det_torch import ClipGradsL2Norm, DataLoader, PyTorchCallback, PyTorchTrial
from det_torch.testing import OneVarTrial, Records


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
        return {
            "y": self.model(batch).sum(),
            "half": self.model.types[-1] in (torch.float16, torch.bfloat16),
        }


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_comes_by_configuration(lab: Any, precision: str) -> None:
    """The model computes in half precision in training and validation, and learns.

    So it does under torch's autocast alone.
    """
    ran = lab(Line, 60, config={"optimizations": {"precision": precision}})
    assert {(m["half"], m["out"]) for m in ran.training.values()} == {(True, 2)}
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


def test_overflowing_step_is_skipped_and_the_scale_is_halved(lab: Any) -> None:
    class Overflowing(Line):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            before = self.model.weight.detach().clone()
            loss = (self.model(batch).float() ** 2).mean() * (
                float("inf") if batch_idx == 1 else 1.0
            )
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            scale = self.context.precision.scaler.get_scale()
            return {
                "loss": loss,
                "moved": bool((self.model.weight != before).any()),
                "scale": scale,
            }

    ran = lab(Overflowing, 3, config={"optimizations": {"precision": "fp16"}})
    assert [m["moved"] for m in ran.training.values()] == [True, False, True]
    assert [m["scale"] for m in ran.training.values()] == [65536, 65536, 32768]


def test_gradients_are_unscaled_before_they_are_clipped(lab: Any) -> None:
    norms: list[float] = []

    class Clipping(Line):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = (self.model(batch).float() ** 2).mean()
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
            loss = (self.model(batch).float() ** 2).mean()
            if batch_idx % 2:
                self.context.backward(loss)
                self.context.step_optimizer(self.optimizer)
            return loss

    lab(Skipping, 4, config={"optimizations": {"precision": "fp16"}})


@pytest.mark.parametrize("clip", [None, lambda parameters: None])
def test_second_fp16_step_of_a_batch_is_refused(lab: Any, clip: Any) -> None:
    """It is possible with a scaler of the trial's own, and without a scaler."""

    class Twice(Line):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            for _ in range(2):
                loss = (self.model(batch).float() ** 2).mean()
                self.context.backward(loss)
                self.context.step_optimizer(self.optimizer, clip_grads=clip)
            return loss

    with pytest.raises(
        TrialError, match=r"twice in one batch for SGD, but in fp16 .* call its update"
    ):
        lab(Twice, 2, config={"optimizations": {"precision": "fp16"}})
    lab(Twice, 2, config={"optimizations": {"precision": "bf16"}})

    class Own(Twice):
        def prepare(self) -> None:
            self.scaler = self.context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            for _ in range(2):
                loss = (self.model(batch) ** 2).mean()
                self.context.backward(self.scaler.scale(loss))
                self.context.step_optimizer(self.optimizer, clip_grads=clip, scaler=self.scaler)
                self.scaler.update()
            return loss

    lab(Own, 2)


def test_trials_own_scaler_is_driven_by_the_trial_and_saved(lab: Any) -> None:
    class Own(Line):
        def prepare(self) -> None:
            self.scaler = self.context.wrap_scaler(
                torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
            )

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                loss = ((self.model(batch) - 3 * batch - 1) ** 2).mean()
            self.context.backward(self.scaler.scale(loss))
            self.scaler.unscale_(self.optimizer)
            self.context.step_optimizer(
                self.optimizer, clip_grads=lambda p: None, scaler=self.scaler
            )
            self.scaler.update()
            return {"loss": loss, "scale": self.scaler.get_scale()}

    whole = lab(Own, 6)
    assert [m["scale"] for m in whole.training.values()] == [8, 16, 16, 32, 32, 64]
    first = lab(Own, 3)
    assert lab(Own, 6, checkpoint=first.checkpoints[3]).training[6] == whole.training[6]


@pytest.mark.parametrize("unscaled_by", ["det", "the trial, before", "the trial, as it clips"])
def test_a_scaler_of_the_trials_own_unscales_before_clipping(lab: Any, unscaled_by: str) -> None:
    """As a loop does that calls `unscale_`, `clip_grad_norm_`, `step` and `update`.

    Hooks of callbacks see the same.
    """
    norms: list[float] = []

    class Clipping(PyTorchCallback):
        def on_before_optimizer_step(self, parameters: Any) -> None:
            norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in parameters])))

    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=1024.0))
            super().__init__(context)

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"clipping": Clipping()}

        def clip(self, parameters: Any) -> None:
            if unscaled_by == "the trial, as it clips":
                self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = ((batch - self.model(batch)) ** 2).mean()
            self.context.backward(self.scaler.scale(loss))
            if unscaled_by == "the trial, before":
                self.scaler.unscale_(self.optimizer)
            self.context.step_optimizer(self.optimizer, clip_grads=self.clip, scaler=self.scaler)
            self.scaler.update()
            return loss

    ran = lab(Trial, 4, hparams={"global_batch_size": 2, "lr": 0.03})
    model, scaler = OneVarTrial.build_model(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.03), {}
    for number in range(4):
        batch = torch.tensor(OneVar().records(number)).reshape(-1, 1)
        loss = ((batch - model(batch)) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses[number + 1] = loss.item()
    assert ran.losses == losses
    assert norms == pytest.approx([0.5] * 4, rel=1e-4)


def test_fp16_is_resumed_exactly(lab: Any) -> None:
    fp16 = {"optimizations": {"precision": "fp16", "aggregation_frequency": 2}}
    whole, first = lab(Line, 9, config=fp16), lab(Line, 5, config=fp16)
    assert lab(Line, 9, config=fp16, checkpoint=first.checkpoints[5]).losses[9] == whole.losses[9]


def test_a_scaler_on_one_side_only_is_said(lab: Any) -> None:
    fp16 = {"optimizations": {"precision": "fp16"}}
    plain, scaled = lab(Line, 1), lab(Line, 1, config=fp16)
    with pytest.warns(
        UserWarning, match="the trial has a gradient scaler, but the checkpoint has no state of one"
    ):
        lab(Line, 2, config=fp16, checkpoint=plain.checkpoints[1])
    with pytest.warns(
        UserWarning, match="the trial has no gradient scaler, but the checkpoint has a state of one"
    ):
        lab(Line, 2, checkpoint=scaled.checkpoints[1])


def test_there_is_one_scaler_and_it_comes_before_the_models(lab: Any) -> None:
    once = (
        r"there is a gradient scaler already; use one of wrap_scaler\(\), experimental.use_amp\(\)"
        r" and optimizations.precision"
    )
    context = lab.context()
    context.wrap_scaler(torch.amp.GradScaler("cpu"))
    with pytest.raises(TrialError, match=once):
        context.wrap_scaler(torch.amp.GradScaler("cpu"))
    with pytest.raises(TrialError, match=once):
        context.experimental.use_amp()
    with pytest.raises(TrialError, match=once):
        lab.context(config={"optimizations": {"precision": "fp16"}}).wrap_scaler(
            torch.amp.GradScaler("cpu")
        )
    late = lab.context()
    late.wrap_model(nn.Linear(1, 1))
    with pytest.raises(
        TrialError, match=r"^wrap_scaler\(\) comes before wrap_model\(\); move it up$"
    ):
        late.wrap_scaler(torch.amp.GradScaler("cpu"))
    with pytest.raises(
        TrialError, match=r"^experimental.use_amp\(\) comes before wrap_model\(\); move it up$"
    ):
        late.experimental.use_amp()


@pytest.fixture(params=["fp16", "bf16"])
def half(lab: Any, request: pytest.FixtureRequest) -> Any:
    """A context in half precision."""
    return lab.context(config={"optimizations": {"precision": request.param}})


class Scaled(nn.Module):
    """A model whose `forward` has a signature, and a branch of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        if x.dim() > 3:
            x = x.flatten(1)
        return self.line(x) * scale


def test_a_model_stays_what_it_is(half: Any, tmp_path: Path) -> None:
    """Its class, its signature, and all that takes it apart.

    `torch.save`, export, script, trace, copies.
    """
    model, x = Scaled(), torch.ones(1, 2)
    wrapped = half.wrap_model(model)
    assert wrapped is model
    assert type(wrapped) is Scaled
    assert list(inspect.signature(wrapped.forward).parameters) == ["x", "scale"]
    expected = Scaled.forward(model, x)
    assert torch.equal(wrapped(x), expected)
    torch.save(wrapped, tmp_path / "model.pt")
    assert torch.equal(torch.load(tmp_path / "model.pt", weights_only=False)(x), expected)
    assert torch.equal(torch.jit.script(wrapped)(x), expected)
    assert torch.equal(torch.export.export(wrapped, (x,)).module()(x), expected)
    copied = copy.deepcopy(wrapped)
    copied.line.weight.data.zero_()
    assert not torch.equal(copied(x), expected)


class Plain:
    """`Stepping` by torch alone."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.optimizers = [
            torch.optim.SGD(net.parameters(), lr=0.1) for net in (self.model, self.other)
        ]

    def train(self, batches: int) -> list[torch.Tensor]:
        """Step one network, and send the next batch of another through what it is now.

        Each pass has an autocast of its own.
        """
        for _ in range(batches):
            for net, its in zip((self.model, self.other), self.optimizers, strict=True):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = ((self.other(self.model(torch.ones(2, 3))) - 3) ** 2).mean()
                loss.backward()
                its.step()
                self.model.zero_grad()
                self.other.zero_grad()
                assert net.weight.dtype is torch.float32
        return [self.model.weight, self.other.weight]


class Stepping(Line):
    """Two networks, stepped one after the other in one batch.

    The second sees the first as it is by then.
    """

    by_itself = False

    def __init__(self, context: Any) -> None:
        self.context, plain = context, Plain()
        self.model, self.other = context.wrap_model(plain.model), context.wrap_model(plain.other)
        self.optimizers = [context.wrap_optimizer(its) for its in plain.optimizers]

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        for its in self.optimizers:
            loss = ((self.other(self.model(torch.ones(2, 3))) - 3) ** 2).mean()
            self.context.backward(loss)
            if self.by_itself:
                its.step()
            else:
                self.context.step_optimizer(its)
            self.model.zero_grad()
            self.other.zero_grad()
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"val_loss": 0.0}


@pytest.mark.parametrize("by_itself", [False, True])
def test_later_passes_of_a_batch_see_the_step_before_them(lab: Any, by_itself: bool) -> None:
    """Autocast keeps copies of weights in half precision.

    Those from before a step must not be used behind it.
    """
    trial = type("Trial", (Stepping,), {"by_itself": by_itself})
    ran = lab(trial, 4, config={"optimizations": {"precision": "bf16"}})
    saved = lab.contents(ran.checkpoints[4])["models_state_dict"]
    for state, weight in zip(saved, Plain().train(4), strict=True):
        assert torch.equal(state["weight"], weight)


class Watched(torch.optim.SGD):
    """Notes whether autocast is on in its steps."""

    seen: ClassVar[list[bool]] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.seen.append(torch.is_autocast_enabled("cpu"))
        return super().step(closure)


def test_backward_and_the_optimizer_compute_outside_of_autocast(lab: Any) -> None:
    """As torch recommends, and as a plain loop does."""
    backward: list[bool] = []

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            backward.append(torch.is_autocast_enabled("cpu"))
            return gradients[0]

    class Trial(Line):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.optimizer = context.wrap_optimizer(Watched(self.model.parameters(), lr=0.1))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            assert torch.is_autocast_enabled("cpu")
            loss = Noting.apply(self.model(batch)).float().mean()  # type: ignore[no-untyped-call]
            self.context.backward(loss)
            self.context.step_optimizer(
                self.optimizer,
                clip_grads=lambda p: backward.append(torch.is_autocast_enabled("cpu")),
            )
            return loss

    lab(Trial, 1, config={"optimizations": {"precision": "bf16"}})
    assert (backward, Watched.seen) == ([False, False], [False])


def test_callbacks_compute_outside_of_autocast(lab: Any) -> None:
    """Each hook that is called between a run's first and last batch."""
    seen: dict[str, bool] = {}

    def hook(name: str) -> Any:
        def note(self: Any, *arguments: Any) -> None:
            seen[name] = torch.is_autocast_enabled("cpu")

        return note

    hooks = [
        name
        for name in vars(PyTorchCallback)
        if name.startswith("on_")
        and name not in ("on_checkpoint_load_start", "on_checkpoint_end", "on_training_end")
    ]
    noting = type("Noting", (PyTorchCallback,), {name: hook(name) for name in hooks})

    class Watching(Line):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"noting": noting()}

    lab(Watching, 4, config={"optimizations": {"precision": "bf16"}})
    assert seen == dict.fromkeys(hooks, False)


def test_apex_is_refused_with_what_to_use_instead(lab: Any) -> None:
    with pytest.raises(
        TrialError,
        match=r"apex is no longer developed; set optimizations.precision to fp16 or bf16",
    ):
        lab.context().configure_apex_amp([], [])


@pytest.mark.slow
def test_a_compiled_model_trains_like_one_that_is_not(lab: Any) -> None:
    """`optimizations.compile: true`; the names in its checkpoint are the same."""
    plain = lab(OneVarTrial, 6)
    compiled = lab(OneVarTrial, 6, config={"optimizations": {"compile": True}})
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-5)
    assert list(lab.contents(compiled.checkpoints[6])["models_state_dict"][0]) == ["weight"]
    assert list(lab(OneVarTrial, 7, checkpoint=compiled.checkpoints[6]).losses) == [7]

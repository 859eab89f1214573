"""What two ranks must find true of their backend, each in a process.

`python checks.py BACKEND FOLDER RANK`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from det_core import (
    CheckpointSink,
    DistributedContext,
    LocalHost,
    Plugins,
    Ranks,
    RunInfo,
    Target,
    TrialError,
    run_trial,
)
from det_core.config import parse
from det_core.ranks.choice import choose_backend
from det_core.storage import LocalStorage
from det_testing._play import meet  # the same meeting as that of the kit's own runs
from det_torch import PyTorchTrial
from det_torch.backends import TorchBackend
from det_torch.context import PyTorchTrialContext
from det_torch.ranks import Replicas
from det_torch.testing import OneVarTrial, Records

CHECKS: dict[str, Callable[[Lab], None]] = {}
SIZE = 2


class Lab:
    """One rank, with contexts to train in."""

    def __init__(
        self, backend: TorchBackend, control: DistributedContext, plugins: Plugins
    ) -> None:
        self.backend, self.control, self._plugins = backend, control, plugins
        self.rank = backend.ranks.rank

    def info(self, **optimizations: Any) -> RunInfo:
        config = parse({"entrypoint": "m:T", "optimizations": optimizations}).config
        build = self._plugins.build("torch")
        return RunInfo(
            config=config,
            hparams={"global_batch_size": SIZE},
            seed=1,
            build=build,
            distributed=self.control,
            slots=SIZE,
        )

    def train(self, trial: type, batches: int) -> list[str]:
        """Train a trial, in a directory that all ranks share; return the warnings of this rank."""
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            keep = CheckpointSink(storage=LocalStorage(self.control.broadcast(folder)))
            run_trial(
                self._plugins.frameworks()["torch"],
                trial,
                self.info(),
                LocalHost(Target(n=batches)),
                keep,
            )
            self.control.barrier()
        return [str(warning.message) for warning in said]

    def context(self, **optimizations: Any) -> PyTorchTrialContext:
        context = PyTorchTrialContext(
            self.info(**optimizations), torch.device("cpu"), backend=self.backend
        )
        context.current_batch = 0
        return context

    def mine(self, joined: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of a batch."""
        return joined.chunk(SIZE)[self.rank]

    def same(self, value: torch.Tensor) -> bool:
        """Tell whether all ranks have the same."""
        everyone = self.backend.allgather(value.detach().clone())
        return all(torch.equal(theirs, everyone[0]) for theirs in everyone)


def check(function: Callable[[Lab], None]) -> Callable[[Lab], None]:
    CHECKS[function.__name__] = function
    return function


def model_of(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(i, o) for i, o in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())]).to(dtype)


def batch_of(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def close(mine: list[torch.Tensor], theirs: list[torch.Tensor], **tolerance: float) -> bool:
    return len(mine) == len(theirs) and all(
        torch.allclose(a, b, **tolerance) for a, b in zip(mine, theirs, strict=True)
    )


@check
def gradients_are_those_of_the_joined_batch_when_backward_has_ended(lab: Lab) -> None:
    """In several buckets, for steps on end, while the layers' number grows and some thaw."""
    context, joined = lab.context(), batch_of(8, 300)
    model, alone = model_of(300, 500, 300, 4), model_of(300, 500, 300, 4)
    for net in (model, alone):
        net[0].requires_grad_(False)
    optimizer = context.wrap_optimizer(
        torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.1, momentum=0.9)
    )
    same = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        if step == 2:
            for net, its in ((model, optimizer), (alone, same)):
                net[0].requires_grad_(True)
                net.append(model_of(4, 2, seed=5))
                its.add_param_group({"params": net[-1].parameters(), "lr": 0.2})
        context.backward((model(lab.mine(joined)) ** 2).mean())
        (alone(joined) ** 2).mean().backward()
        assert close(gradients(model), gradients(alone)), step
        context.step_optimizer(optimizer)
        same.step()
        same.zero_grad()
    assert close(list(model.parameters()), list(alone.parameters()))
    assert lab.same(model[0].weight)


@check
def two_models_with_an_optimizer_each_train_as_on_one_rank(lab: Lab) -> None:
    """A GAN: a pass through both, of which one is stepped.

    A discriminator that is called twice before its pass.
    """
    context, real, noise = lab.context(), batch_of(8, 6), batch_of(8, 3, seed=2)

    def parts() -> tuple[nn.Module, nn.Module, Any, Any]:
        generator, critic = model_of(3, 16, 6), model_of(6, 16, 1, seed=3)
        return (
            generator,
            critic,
            torch.optim.Adam(generator.parameters()),
            torch.optim.Adam(critic.parameters()),
        )

    def train(
        g: nn.Module, d: nn.Module, of_g: Any, of_d: Any, back: Any, step: Any, x: Any, z: Any
    ) -> None:
        for _ in range(3):
            of_d.zero_grad()
            back((d(g(z).detach()) ** 2).mean() + ((d(x) - 1) ** 2).mean())
            step(of_d)
            of_g.zero_grad()
            back(((d(g(z)) - 1) ** 2).mean())
            step(of_g)

    g, d, of_g, of_d = parts()
    context.wrap_model(g), context.wrap_model(d)
    wrapped = context.wrap_optimizer(of_g), context.wrap_optimizer(of_d)
    train(g, d, *wrapped, context.backward, context.step_optimizer, lab.mine(real), lab.mine(noise))
    g1, d1, of_g1, of_d1 = parts()
    train(g1, d1, of_g1, of_d1, lambda loss: loss.backward(), lambda its: its.step(), real, noise)
    assert close([*g.parameters(), *d.parameters()], [*g1.parameters(), *d1.parameters()])
    assert lab.same(g[0].weight)
    assert lab.same(d[0].weight)


@check
def backward_may_be_called_twice(lab: Lab) -> None:
    """For two losses of one forward pass, with the same parameters."""
    context, model, alone, joined = (
        lab.context(),
        model_of(5, 7, 2),
        model_of(5, 7, 2),
        batch_of(8, 5),
    )
    optimizer = context.wrap_optimizer(
        torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.1)
    )
    for _ in range(2):
        output = model(lab.mine(joined))
        context.backward((output**2).mean(), retain_graph=True)
        context.backward(output.abs().mean())
        together = alone(joined)
        ((together**2).mean() + together.abs().mean()).backward()
        assert close(gradients(model), gradients(alone))
        alone.zero_grad()
        context.step_optimizer(optimizer)
        alone.load_state_dict(model.state_dict())


@check
def a_pass_that_the_trial_runs_itself_is_averaged_before_the_step(lab: Lab) -> None:
    """`loss.backward()` in place of `context.backward(loss)`."""
    context, model, alone, joined = (
        lab.context(),
        model_of(5, 7, 2),
        model_of(5, 7, 2),
        batch_of(8, 5),
    )
    optimizer = context.wrap_optimizer(
        torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.1)
    )
    for _ in range(2):  # the first comes before anything is known of the parameters
        (model(lab.mine(joined)) ** 2).mean().backward()
        (alone(joined) ** 2).mean().backward()
        context.step_optimizer(optimizer, auto_zero_grads=False)
        assert close(gradients(model), gradients(alone))
        optimizer.zero_grad()
        alone.zero_grad()
        assert lab.same(model[0].weight)
        alone.load_state_dict(model.state_dict())


@check
def an_optimizer_that_evaluates_its_loss_again_takes_the_steps_of_one_rank(lab: Lab) -> None:
    """LBFGS with its line search, by closures that run their pass themselves or let det.

    And Adam, by a keyword.
    """
    joined = batch_of(8, 5)

    def lbfgs(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

    for make, managed in ((lbfgs, True), (lbfgs, False), (torch.optim.Adam, False)):
        context, model, alone = lab.context(), model_of(5, 7, 2), model_of(5, 7, 2)
        optimizer = context.wrap_optimizer(make(context.wrap_model(model).parameters()))
        same = make(alone.parameters())

        def loss_of(
            net: nn.Module, x: torch.Tensor, its: Any, back: Callable[..., Any]
        ) -> Callable[[], Any]:
            def closure() -> Any:
                its.zero_grad()
                loss = ((net(x) - 0.5) ** 2).mean()
                back(loss)
                return loss

            return closure

        for _ in range(3):
            back = context.backward if managed else torch.Tensor.backward
            mine = optimizer.step(closure=loss_of(model, lab.mine(joined), optimizer, back))
            theirs = same.step(loss_of(alone, joined, same, torch.Tensor.backward))
            assert make is not lbfgs or torch.allclose(mine, theirs)
        assert close(list(model.parameters()), list(alone.parameters()), rtol=1e-6)
        assert lab.same(model[0].weight)


@check
def a_gradient_that_one_rank_lacks_is_the_mean_over_both(lab: Lab) -> None:
    """And one that all lack stays away, so that the optimizer leaves its parameter alone."""
    context, heads, joined = (
        lab.context(),
        nn.ModuleList(model_of(5, 2, seed=n) for n in range(3)),
        batch_of(8, 5),
    )
    optimizer = context.wrap_optimizer(
        torch.optim.SGD(context.wrap_model(heads).parameters(), lr=0.1, weight_decay=1)
    )
    before = heads[2][0].weight.clone()
    for _ in range(2):
        context.backward((heads[lab.rank](lab.mine(joined)) ** 2).mean())
        assert heads[2][0].weight.grad is None
        alone = model_of(5, 2, seed=0)
        alone.load_state_dict(heads[0].state_dict())
        (alone(joined.chunk(SIZE)[0]) ** 2).mean().backward()
        assert torch.allclose(heads[0][0].weight.grad, alone[0].weight.grad / SIZE)
        context.step_optimizer(optimizer)
        assert all(lab.same(head[0].weight) for head in heads)
    assert torch.equal(heads[2][0].weight, before)


@check
def aggregated_gradients_travel_with_the_last_batch_only(lab: Lab) -> None:
    context, model, alone, joined = (
        lab.context(aggregation_frequency=2),
        model_of(5, 3),
        model_of(5, 3),
        batch_of(8, 5),
    )
    optimizer = context.wrap_optimizer(
        torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.1)
    )
    for number, part in enumerate(joined.chunk(2)):
        context.current_batch = number
        context.backward((model(lab.mine(part)) ** 2).mean())
        (alone(part) ** 2).mean().backward()
        assert lab.same(model[0].weight.grad) == bool(number)
        context.step_optimizer(optimizer)
    for parameter in alone.parameters():
        parameter.data -= 0.1 * parameter.grad / 2
    assert close(list(model.parameters()), list(alone.parameters()))


@check
def gradients_are_whole_when_they_are_clipped(lab: Lab) -> None:
    context, model, joined = lab.context(), model_of(5, 3), batch_of(8, 5)
    optimizer = context.wrap_optimizer(
        torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.1)
    )
    context.backward((model(lab.mine(joined)) ** 2).mean())
    norms: list[torch.Tensor] = []
    context.step_optimizer(
        optimizer, clip_grads=lambda ps: norms.append(nn.utils.clip_grad_norm_(ps, 0.01))
    )
    assert lab.same(norms[0])
    assert lab.same(model[0].weight)


@check
def half_precision_gradients_are_averaged(lab: Lab) -> None:
    """bfloat16, which Horovod does not carry, and float16."""
    for dtype in (torch.bfloat16, torch.float16):
        context = lab.context()
        model, alone = model_of(5, 3, dtype=dtype), model_of(5, 3)
        joined = batch_of(8, 5, dtype=dtype)
        context.wrap_optimizer(torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.1))
        context.backward((model(lab.mine(joined)) ** 2).mean())
        alone.load_state_dict(model.state_dict())
        (alone(joined.double()) ** 2).mean().backward()
        assert {gradient.dtype for gradient in gradients(model)} == {dtype}
        assert close([g.double() for g in gradients(model)], gradients(alone), rtol=0.05, atol=0.02)
        assert lab.same(model[0].weight.grad)


@check
def compressed_gradients_are_nearly_the_same(lab: Lab) -> None:
    """Of the configuration, and of the optimizer that asks otherwise."""
    context, joined = lab.context(gradient_compression=True), batch_of(8, 5)
    small, exact, alone = model_of(5, 3), model_of(5, 3), model_of(5, 3)
    context.wrap_optimizer(torch.optim.SGD(context.wrap_model(small).parameters(), lr=0.1))
    context.wrap_optimizer(
        torch.optim.SGD(context.wrap_model(exact).parameters(), lr=0.1), fp16_compression=False
    )
    context.backward((small(lab.mine(joined)) ** 2).mean() + (exact(lab.mine(joined)) ** 2).mean())
    (alone(joined) ** 2).mean().backward()
    assert close(gradients(exact), gradients(alone))
    assert close(gradients(small), gradients(alone), rtol=1e-2, atol=1e-3)
    assert not close(gradients(small), gradients(alone), rtol=1e-7, atol=1e-9)
    assert {gradient.dtype for gradient in gradients(small)} == {torch.float64}


@check
def parameters_that_are_not_contiguous_keep_their_layout(lab: Lab) -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)

    context, model, alone, joined = lab.context(), net(), net(), batch_of(4, 3, 8, 8)
    context.wrap_optimizer(torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.1))
    context.backward((model(lab.mine(joined)) ** 2).mean())
    (alone(joined) ** 2).mean().backward()
    assert close(gradients(model), gradients(alone))
    assert model.weight.grad.stride() == model.weight.stride()


@check
def sparse_gradients_stay_sparse(lab: Lab) -> None:
    """Each rank has rows of its own; on the second step one has none."""

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Embedding(10, 3, sparse=True).double()

    context, model, alone = lab.context(), net(), net()
    optimizer = context.wrap_optimizer(
        torch.optim.SparseAdam(context.wrap_model(model).parameters(), lr=0.1)
    )
    same = torch.optim.SparseAdam(alone.parameters(), lr=0.1)
    for words in (torch.tensor([[1, 2, 2], [2, 5, 7]]), torch.tensor([[4, 4, 4]])):
        if lab.rank < len(words):
            context.backward((model(words[lab.rank]) ** 2).sum())
        else:
            context.backward(torch.zeros((), requires_grad=True))
        (alone(words) ** 2).sum().div(SIZE).backward()
        assert model.weight.grad.is_sparse
        context.step_optimizer(optimizer)
        same.step()
        same.zero_grad()
    assert torch.allclose(model.weight, alone.weight)


@check
def a_module_that_is_computed_again_in_the_pass_has_its_whole_gradient(lab: Lab) -> None:
    """Reentrant checkpointing runs a pass within the pass.

    A parameter that is used twice gets its gradient in two parts.
    """
    from torch.utils.checkpoint import checkpoint

    context, model, alone, joined = lab.context(), model_of(5, 5), model_of(5, 5), batch_of(8, 5)
    context.wrap_optimizer(torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.1))
    for _ in range(3):
        x = lab.mine(joined).clone().requires_grad_()
        context.backward(
            (
                checkpoint(model, checkpoint(model, x, use_reentrant=True), use_reentrant=True) ** 2
            ).mean()
        )
        (alone(alone(joined)) ** 2).mean().backward()
        assert close(gradients(model), gradients(alone))
        model.zero_grad()
        alone.zero_grad()


@check
def an_overflow_on_one_rank_skips_the_step_on_all(lab: Lab) -> None:
    """So that the scale stays the same everywhere."""
    context = lab.context(precision="fp16")
    model = context.wrap_model(model_of(5, 3, dtype=torch.float32))
    optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    before = model[0].weight.clone()
    scale = context.precision.scaler.get_scale()
    loss = (model(lab.mine(batch_of(8, 5, dtype=torch.float32))) ** 2).mean()
    context.backward(loss * (float("inf") if lab.rank else 1.0))
    context.step_optimizer(optimizer)
    context.precision.after_batch()
    assert torch.equal(model[0].weight, before)
    assert context.precision.scaler.get_scale() == scale / 2


@check
def replicas_take_over_the_chiefs_state(lab: Lab) -> None:
    """Weights, buffers and optimizer states.

    A rank began with other ones, or with states that the chief lacks.
    """
    for steps in ((1, 1), (1, 0), (0, 1)):
        model = nn.Sequential(model_of(5, 3, seed=lab.rank), nn.BatchNorm1d(3).double())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + lab.rank)
        for _ in range(steps[lab.rank]):
            model(batch_of(8, 5, seed=lab.rank)).mean().backward()
            optimizer.step()
        Replicas(lab.backend, [model], [optimizer]).align()
        assert all(lab.same(value) for value in model.state_dict().values())
        everyone = lab.backend.allgather(optimizer.state_dict())
        assert everyone[0]["param_groups"] == everyone[1]["param_groups"]
        assert everyone[0]["state"].keys() == everyone[1]["state"].keys()
        for index, state in everyone[0]["state"].items():
            assert all(
                torch.equal(state[name], everyone[1]["state"][index][name]) for name in state
            )


@check
def buffers_that_a_step_reads_are_the_chiefs(lab: Lab) -> None:
    """Those of a normalization are read in evaluation mode only, else they wait for a validation."""

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("centre", torch.full((2,), float(lab.rank)))

    model = Centred()
    model.norm.running_mean.fill_(lab.rank)
    replicas = Replicas(lab.backend, [model], [])
    replicas.align_buffers(used=True)
    assert (model.centre.tolist(), model.norm.running_mean.tolist()) == (
        [0.0, 0.0],
        [float(lab.rank)] * 2,
    )
    replicas.align_buffers()
    assert model.norm.running_mean.tolist() == [0.0, 0.0]


@check
def a_rank_goes_on_with_its_own_buffers_after_it_had_the_chiefs(lab: Lab) -> None:
    """Except for those that were changed while it had the chief's."""
    model = nn.Module()
    for name in ("kept", "changed", "assigned"):
        model.register_buffer(name, torch.tensor([float(lab.rank), float("nan")]))
    with Replicas(lab.backend, [model], []).chiefs_buffers():
        assert [each[0].item() for each in model.buffers()] == [0.0] * 3
        model.changed += 5
        model.assigned = torch.full((2,), 7.0)
    found = {name: each[0].item() for name, each in model.named_buffers()}
    assert found == {"kept": float(lab.rank), "changed": 5.0, "assigned": 7.0}


@check
def a_normalization_in_evaluation_mode_has_the_chiefs_statistics(lab: Lab) -> None:
    """As under DistributedDataParallel: a step reads them, so they do not wait for a validation."""
    norm = nn.BatchNorm1d(2)
    found: list[float] = []
    step = Replicas(lab.backend, [norm], []).aligned(
        lambda: found.append(float(norm.running_mean[0]))
    )
    for training in (True, False):
        norm.train(training).running_mean.fill_(lab.rank)
        step()
    assert found == [float(lab.rank), 0.0]
    linear = nn.Linear(1, 1)
    assert Replicas(lab.backend, [linear], []).aligned(linear) is linear


@check
def a_buffer_that_a_step_assigns_is_the_chiefs_at_each_synchronisation(lab: Lab) -> None:
    """As under DistributedDataParallel, with the same numbers.

    One that is registered later, too.
    """

    class Centre(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(6, 1)
            self.register_buffer("centre", torch.zeros(6))
            self.met: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.met.append(self.centre)
            out: torch.Tensor = self.linear(x - self.centre)
            self.centre = self.centre * 0.9 + x.mean(0) * 0.1
            self.register_buffer("late", self.centre * 2)
            return out

    context, model, plain = lab.context(), Centre(), Centre()
    optimizer = context.wrap_optimizer(
        torch.optim.SGD(context.wrap_model(model).parameters(), lr=0.05)
    )
    replicas = Replicas(lab.backend, [model], [optimizer])

    def train(x: torch.Tensor) -> None:
        context.backward((model(x) ** 2).mean())
        context.step_optimizer(optimizer)

    step = replicas.aligned(train)
    batches = [
        batch_of(4, 6, seed=2 * number + lab.rank, dtype=torch.float32) for number in range(5)
    ]
    for batch in batches:
        step(batch)
    assert all(lab.same(centre) for centre in model.met)
    assert not lab.same(model.centre)
    replicas.align_buffers()
    assert lab.same(model.centre)
    assert lab.same(model.late)
    if not torch.distributed.is_initialized():
        return
    ddp = nn.parallel.DistributedDataParallel(plain)
    same = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for batch in batches:
        (ddp(batch) ** 2).mean().backward()
        same.step()
        same.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.met, plain.met, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True)
    )


@check
def tensors_of_every_type_are_sent(lab: Lab) -> None:
    kinds = (
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.complex64,
    )
    tensors = [torch.full((3, 2), lab.rank).to(kind) for kind in kinds]
    tensors += [torch.tensor(float(lab.rank)), torch.zeros(0), torch.full((2, 3), lab.rank).t()]
    lab.backend.spread(tensors)
    assert all(
        not tensor.abs().sum() if tensor.dtype != torch.bool else not tensor.any()
        for tensor in tensors
    )


@check
def objects_are_exchanged(lab: Lab) -> None:
    backend, rank = lab.backend, lab.rank
    assert backend.allgather({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert backend.gather(rank) == ([0, 1] if rank == 0 else None)
    assert backend.broadcast(["chief", rank]) == ["chief", 0]
    assert backend.allgather_local(rank) == [0, 1]
    assert [backend.agree(flag) for flag in (False, rank == 1, True)] == [False, True, True]
    backend.barrier()
    assert backend.ranks == Ranks(rank=rank, size=SIZE, local_rank=rank, local_size=SIZE)


class Reading(OneVarTrial):
    """Its data are streams, which every rank reads whole."""

    def build_training_data_loader(self) -> Any:
        return torch.utils.data.DataLoader(Endless(), batch_size=1)


class Endless(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(lambda: torch.ones(1), None)


@check
def data_that_every_rank_reads_whole_is_said_to_be_by_the_chief_once(lab: Lab) -> None:
    told = [
        text for text in lab.train(Reading, 3) if "reads all of the training data (Endless)" in text
    ]
    assert len(told) == (1 if lab.rank == 0 else 0)


class WholeOfAShare(OneVarTrial):
    """Wants all of the data, and builds a share of it."""

    evaluate_batch = PyTorchTrial.evaluate_batch

    def build_validation_data_loader(self) -> Any:
        data = Records([1.0, 2.0])
        sampler = torch.utils.data.DistributedSampler(data, SIZE, self.context.distributed.rank)
        return torch.utils.data.DataLoader(data, sampler=sampler)

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        raise NotImplementedError


@check
def a_whole_evaluation_of_data_that_is_sharded_by_rank_is_refused(lab: Lab) -> None:
    try:
        lab.train(WholeOfAShare, 1)
    except TrialError as error:
        told = str(error)
    assert (
        told
        == "evaluate_full_dataset gets all of the data on the chief, but the validation data is"
        " sharded by rank; build it whole, or define evaluate_batch"
    )


def main(backend: str, folder: str, rank: str) -> None:
    path, plugins = Path(folder), Plugins.installed(strict=True)
    facts = {"size": SIZE, "key": (path / "key").read_text()}
    found: dict[str, str] = {}
    with meet(facts, int(rank), path) as control:
        record = choose_backend(backend, "torch", plugins.backends())
        group: Any = record.load().join(control)
        group.init()
        for name, function in CHECKS.items():
            sys.stderr.write(f"{name}\n")
            try:
                function(Lab(group, control, plugins))
                found[name] = ""
            except Exception:
                found[name] = traceback.format_exc()
                sys.stderr.write(found[name])
            control.barrier()
        group.shutdown()
    (path / f"found-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

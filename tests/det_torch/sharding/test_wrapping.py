"""What is divided, and what is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from det_core import ConfigError, Framework, TrialError
from det_core.config import Optimizations, parse
from det_core.ranks.choice import must_shard, wanted_backend
from det_torch.backends import Native, Objects
from det_torch.sharding import Sharding, is_sharded, materialize, reshard

FSDP = Optimizations(sharding="fsdp")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def native() -> Iterator[Native]:
    """The process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    backend = Native()
    backend.init()
    yield backend
    backend.shutdown()
    dist.destroy_process_group()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
        nn.Linear(8, 2),
    )


def divided(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules() if isinstance(module, FSDPModule)]


def test_blocks_of_one_class_are_gathered_one_at_a_time(native: Native) -> None:
    model = Sharding(FSDP, native).place(encoder(), CPU, None, None)
    assert divided(model) == ["FSDPSequential", *["FSDPTransformerEncoderLayer"] * 3]
    assert all(is_sharded(parameter) for parameter in model.parameters())


def test_the_trial_says_which_blocks_by_class_or_by_a_function(native: Native) -> None:
    model = Sharding(FSDP, native).place(encoder(), CPU, None, [nn.TransformerEncoder])
    assert divided(model) == ["FSDPSequential", "FSDPTransformerEncoder"]
    model = Sharding(FSDP, native).place(
        encoder(), CPU, None, lambda m: getattr(m, "in_features", 0) == 4
    )
    assert divided(model) == ["FSDPSequential", "FSDPLinear"]


def test_half_precision_leaves_running_statistics_in_single(native: Native) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = Sharding(FSDP, native).place(model, CPU, torch.bfloat16, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.ones(3, 4)).dtype is torch.bfloat16
    reshard([model])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_model_on_the_meta_device_is_initialized_by_block(native: Native) -> None:
    with torch.device("meta"):
        model = encoder()
    model = Sharding(FSDP, native).place(model, CPU, None, None)
    assert all(parameter.to_local().isfinite().all() for parameter in model.parameters())  # type: ignore[attr-defined]


def test_a_module_without_memory_that_cannot_begin_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1, device="meta"))

    with pytest.raises(
        TrialError, match=r"^0 was made on the device meta, but has no reset_parameters"
    ):
        materialize(nn.Sequential(Scale()), CPU)


def test_weights_shared_by_separate_blocks_are_refused(native: Native) -> None:
    model = encoder()
    layers: Any = model[1].layers  # type: ignore[index]
    layers[0].linear1.weight = model[2].weight = nn.Parameter(torch.ones(8, 8))  # type: ignore[index]
    with pytest.raises(
        TrialError, match=r"is shared by modules that are gathered apart; choose them together"
    ):
        Sharding(FSDP, native).place(model, CPU, None, None)


def test_what_cannot_be_combined_is_said() -> None:
    with pytest.raises(
        TrialError,
        match=r"needs torch.distributed, but the ranks meet by Objects; set distributed.backend",
    ):
        Sharding(FSDP, Objects())


def test_compressed_gradients_are_refused(native: Native) -> None:
    with pytest.raises(
        TrialError, match="gradient_compression does not go with sharding: fsdp; leave it out"
    ):
        Sharding(Optimizations(sharding="fsdp", gradient_compression=True), native)


def test_sparse_gradients_are_refused(native: Native) -> None:
    with pytest.raises(
        TrialError, match=r"^0 has sparse gradients, which a sharded model cannot have"
    ):
        Sharding(FSDP, native).place(
            nn.Sequential(nn.Embedding(3, 2, sparse=True)), CPU, None, None
        )


def test_optimizers_that_cannot_step_parts_are_refused(native: Native) -> None:
    sharding = Sharding(FSDP, native)
    model = encoder()
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    model = sharding.place(model, CPU, None, None)
    with pytest.raises(TrialError, match="the optimizer holds parameters from before wrap_model"):
        sharding.check_optimizer(early, [model], False)
    with pytest.raises(TrialError, match="LBFGS looks at all parameters at once"):
        sharding.check_optimizer(torch.optim.LBFGS(model.parameters()), [model], False)
    with pytest.raises(TrialError, match="fp16_compression does not go with a sharded model"):
        sharding.check_optimizer(torch.optim.SGD(model.parameters()), [model], True)
    sharding.check_optimizer(torch.optim.SGD(model.parameters()), [model], False)


def test_tensor_parallelism_is_refused(native: Native) -> None:
    """Its ranks want the same data, and det gives each its own."""
    model = nn.Linear(2, 2)
    whole = distribute_tensor(model.weight.detach(), init_device_mesh("cpu", (1,)), [Replicate()])
    model.weight = nn.Parameter(whole)
    with pytest.raises(
        TrialError,
        match=r"^weight is a DTensor over 1 of 1 ranks that fully_shard did not divide alone",
    ):
        Sharding(Optimizations(), native).place(model, CPU, None, None)
    assert isinstance(model.weight, DTensor)


def test_frameworks_that_copy_the_model_refuse_sharding() -> None:
    """With sharding, Horovod is used only where the configuration names it."""
    config = parse({"optimizations": {"sharding": "fsdp"}}).config
    copying = Framework(name="keras", trial="det_keras:KerasTrial", load=lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(
        ConfigError,
        match="sharding is 'fsdp', but 'keras' gives each rank a copy of the model; set it to",
    ):
        must_shard(config, copying)
    assert wanted_backend(config) == "native"
    assert wanted_backend(parse({}).config) == "auto"
    chosen = parse(
        {"optimizations": {"sharding": "fsdp"}, "distributed": {"backend": "horovod"}}
    ).config
    assert wanted_backend(chosen) == "horovod"

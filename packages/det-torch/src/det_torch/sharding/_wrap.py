"""Shards a model's parameters over the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from det_core import TrialError

from ..backends import Native, TorchBackend
from ._tensors import is_sharded

if TYPE_CHECKING:
    from det_core.config import Optimizations

Blocks = Callable[[nn.Module], bool] | Iterable[type[nn.Module]]
"""The modules that are gathered one at a time: their classes, or a function that selects them."""

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Sharding:
    """Shards models if `optimizations.sharding` asks for it, and accepts models that a trial has
    sharded by `fully_shard`.

    `used` says whether there is a sharded model.
    """

    def __init__(self, optimizations: Optimizations, backend: TorchBackend | None) -> None:
        self._asked = optimizations.sharding == "fsdp" and backend is not None
        self._backend = backend
        self._mesh: Any = None
        self.used = False
        if self._asked:
            self._refuse_backend()
            if optimizations.gradient_compression:
                raise TrialError(
                    "optimizations.gradient_compression does not go with sharding: fsdp; leave it"
                    " out: with optimizations.precision bf16 or fp16, parameters travel in 16 bits"
                )

    def place(
        self,
        model: nn.Module,
        device: torch.device,
        dtype: torch.dtype | None,
        blocks: Blocks | None,
    ) -> nn.Module:
        """Move a model to the device.

        Shard it if that is configured and the trial has not done it.
        """
        if any(is_sharded(parameter) for parameter in model.parameters()):
            self._check_own(model)
            self.used = True
            return model.to(device)
        if not self._asked:
            materialize(model, device)
            return model.to(device)
        self._refuse_sparse(model)
        self._shard(model, device, dtype, blocks)
        self.used = True
        return model

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, models: Iterable[nn.Module], compress: bool
    ) -> None:
        """Raise TrialError for an optimizer that cannot step a sharded model."""
        if not self.used:
            return
        known = {id(parameter) for model in models for parameter in model.parameters()}
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(id(parameter) not in known and not is_sharded(parameter) for parameter in held):
            raise TrialError(
                "the optimizer holds parameters from before wrap_model() divided them among the"
                " ranks; make it from the parameters of the model that wrap_model() returned"
            )
        closure = signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is Parameter.empty:
            raise TrialError(
                f"{type(optimizer).__name__} looks at all parameters at once, and does not go with"
                " a sharded model; take another optimizer, or optimizations.sharding: none"
            )
        if compress:
            raise TrialError("fp16_compression does not go with a sharded model; leave it out")

    # Sharding

    def _shard(
        self,
        model: nn.Module,
        device: torch.device,
        dtype: torch.dtype | None,
        blocks: Blocks | None,
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        assert self._backend is not None
        if self._mesh is None:
            self._mesh = init_device_mesh(device.type, (self._backend.ranks.size,))
        policy = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None
        )
        chosen = list(_chosen(model, blocks))
        _refuse_tied(model, chosen)
        # Running statistics are in single precision and need weights and inputs of the same type.
        apart = [m for m in model.modules() if dtype and isinstance(m, _NormBase) and m.affine]
        # Inner modules are sharded first.
        for block in (*apart, *reversed(chosen), model):
            materialize(block, device)
            block.to(device)
            self._backend.spread([p for p in block.parameters() if not is_sharded(p)])
            fully_shard(
                block,
                mesh=self._mesh,
                mp_policy=MixedPrecisionPolicy() if block in apart else policy,
            )

    # Checks

    def _refuse_backend(self) -> None:
        if not isinstance(self._backend, Native):
            raise TrialError(
                "optimizations.sharding: fsdp needs torch.distributed, but the ranks meet by"
                f" {type(self._backend).__name__}; set distributed.backend to native"
            )

    def _refuse_sparse(self, model: nn.Module) -> None:
        name = next(
            (name for name, module in model.named_modules() if getattr(module, "sparse", False)),
            None,
        )
        if name is not None:
            raise TrialError(
                f"{name or 'the model'} has sparse gradients, which a sharded model cannot have;"
                " give sparse=False"
            )

    def _check_own(self, model: nn.Module) -> None:
        """Raise TrialError for a model that the trial has sharded in a way that det cannot train.

        Each rank must be able to train on different data.
        """
        from torch.distributed.fsdp import FSDPModule

        if self._backend is not None:
            self._refuse_backend()
        size = self._backend.ranks.size if self._backend is not None else 1
        under = {
            id(p) for m in model.modules() if isinstance(m, FSDPModule) for p in m.parameters()
        }
        for name, parameter in model.named_parameters():
            if not is_sharded(parameter):
                continue
            mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
            alike = all(placement.is_replicate() for placement in placements[:-1])
            if id(parameter) not in under or not alike or mesh.size() != size:
                raise TrialError(
                    f"{name} is a DTensor over {mesh.size()} of {size} ranks that fully_shard did"
                    " not divide alone; det gives each rank data of its own: shard over all ranks"
                    " by fully_shard, and leave tensor parallelism out"
                )


def materialize(model: nn.Module, device: torch.device) -> None:
    """Give modules on the device `meta` memory and initial values.

    Their `reset_parameters` sets these.
    """
    # Children come first, as a parent's method may replace what its children's have set.
    for name, module in reversed(list(model.named_modules())):
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if not any(tensor.is_meta for tensor in own):
            continue
        reset = getattr(module, "reset_parameters", None) or getattr(
            module, "_reset_parameters", None
        )
        if not callable(reset):
            raise TrialError(
                f"{name or type(model).__name__} was made on the device meta, but has no"
                " reset_parameters(), which gives its first values; define it, or make the model"
                " on the CPU"
            )
        module.to_empty(device=device, recurse=False)
        reset()


def _chosen(model: nn.Module, blocks: Blocks | None) -> Iterator[nn.Module]:
    """Yield the modules that are gathered one at a time.

    By default these are the outermost whose class occurs more than once.
    """
    inner = [
        module
        for module in model.modules()
        if module is not model and any(True for _ in module.parameters())
    ]
    if blocks is not None:
        wanted = blocks if callable(blocks) else tuple(blocks)
        yield from (
            m for m in inner if (isinstance(m, wanted) if isinstance(wanted, tuple) else wanted(m))
        )
        return
    composed = [
        m for m in inner if any(True for _ in m.children()) and not isinstance(m, _CONTAINERS)
    ]
    count = Counter(type(module) for module in composed)
    within: set[int] = set()
    # Parents come first.
    for module in composed:
        if count[type(module)] > 1 and id(module) not in within:
            within.update(map(id, module.modules()))
            yield module


def _refuse_tied(model: nn.Module, chosen: list[nn.Module]) -> None:
    """Raise TrialError for a parameter that two blocks share, or a block and the rest.

    It can be gathered with only one of them.
    """
    unit_of: dict[int, int] = {}
    owners: dict[int, nn.Module] = {}
    # The innermost block wins.
    for block in (model, *chosen):
        for module in block.modules():
            owners[id(module)] = block
    for name, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            unit = id(owners[id(module)])
            if unit_of.setdefault(id(parameter), unit) != unit:
                where = f"{name}.{own}" if name else own
                raise TrialError(
                    f"{where} is shared by modules that are gathered apart; choose them together: "
                    "context.wrap_model(model, blocks=...)"
                )

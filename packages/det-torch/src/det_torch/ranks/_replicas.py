"""Every rank's copy of the models and optimizers: equal to the chief's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from det_core import TrialError

from .. import sharding
from ..backends import TorchBackend
from ..sharding import is_sharded


class Replicas:
    """The models and optimizers of this rank."""

    def __init__(
        self, backend: TorchBackend, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._backend, self._models, self._optimizers = backend, models, optimizers
        modules = [module for model in models for module in model.modules()]
        self._buffers = _buffers(modules)
        self._used = _buffers([module for module in modules if not _only_measures(module)])
        self._sharded = any(is_sharded(p) for model in models for p in model.parameters())
        self._steps = 0
        for optimizer in optimizers if self._sharded else ():
            optimizer.register_step_post_hook(self._stepped)

    @property
    def drifting(self) -> bool:
        """Whether the models have buffers that a training step may read and change."""
        return bool(self._used)

    def align(self) -> None:
        """Take over the chief's parameters, buffers and optimizer states."""
        parameters = {id(p): p for model in self._models for p in model.parameters()}
        self._backend.spread([*(p for p in parameters.values() if not is_sharded(p)), *self._buffers])
        for optimizer in self._optimizers:
            self._align(optimizer)

    def aligned(self, train: Callable[..., Any]) -> Callable[..., Any]:
        """Let each batch begin with the chief's buffers, as torch's DistributedDataParallel does for each forward pass."""

        def aligned(*batch: Any) -> Any:
            self.align_buffers(used=True)
            return train(*batch)

        return aligned

    def align_buffers(self, *, used: bool = False) -> None:
        """Take over the chief's buffers: all, or those that a training step may read."""
        if not used:
            sharding.reshard(self._models)
        self._backend.spread(self._used if used else self._buffers)

    def fingerprint(self) -> str:
        """Return a checksum of the bits of all parameters, as far as each rank has them."""
        sharding.reshard(self._models)
        checksum = hashlib.blake2b()
        for model in self._models:
            for parameter in model.parameters():
                if not is_sharded(parameter):
                    checksum.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if not self._sharded:
            return checksum.hexdigest()
        return checksum.hexdigest() + sharding.fingerprint(self._backend, self._models, self._optimizers, self._steps)

    def _stepped(self, *arguments: Any) -> None:
        self._steps += 1

    def _align(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over an optimizer's state: its tensors in place, or all of it where the ranks hold different things."""
        facts, tensors = _facts(optimizer)
        everyone = self._backend.allgather(facts)
        if all(theirs == everyone[0] for theirs in everyone):
            self._backend.spread(tensors)
            return
        if self._sharded:
            raise TrialError("the ranks' optimizers hold different things; make and restore them alike on each rank")
        state = self._backend.broadcast(optimizer.state_dict())
        if self._backend.ranks.rank:
            optimizer.load_state_dict(state)


def _buffers(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    found = {id(b): b for module in modules for b in module.buffers(recurse=False)}
    return list(found.values())


def _only_measures(module: nn.Module) -> bool:
    """Tell whether a module's buffers are statistics that its training step never reads: one of torch's normalizations."""
    return isinstance(module, _NormBase) and type(module).__module__.startswith("torch.nn.")


def _facts(optimizer: torch.optim.Optimizer) -> tuple[Any, list[torch.Tensor]]:
    """Return what must agree before tensors can be exchanged one for one, and the tensors."""
    state = optimizer.state_dict()
    tensors: list[torch.Tensor] = []
    described: list[Any] = []
    for index, of_parameter in sorted(state["state"].items()):
        for name, value in sorted(of_parameter.items()):
            if is_sharded(value):
                described.append((index, name, str(value.dtype), tuple(value.shape)))
            elif isinstance(value, torch.Tensor):
                tensors.append(value)
                described.append((index, name, str(value.dtype), tuple(value.shape)))
            else:
                described.append((index, name, repr(value)))
    groups = [
        {name: repr(value) for name, value in group.items() if name != "params"} for group in state["param_groups"]
    ]
    return (groups, described), tensors

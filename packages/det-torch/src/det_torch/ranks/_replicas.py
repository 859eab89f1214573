"""Keeps every rank's copy of the models and optimizers equal to the chief's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from det_core import TrialError

from .. import sharding
from ..backends import TorchBackend
from ..optimizer_state import types_kept
from ..sharding import is_sharded


class Replicas:
    """The copies of the models and optimizers on this rank."""

    def __init__(
        self,
        backend: TorchBackend,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._backend, self._models, self._optimizers = backend, models, optimizers
        self._sharded = any(is_sharded(p) for model in models for p in model.parameters())
        self._steps = 0
        for optimizer in optimizers if self._sharded else ():
            optimizer.register_step_post_hook(self._stepped)

    def align(self) -> None:
        """Copy the chief's parameters, buffers and optimizer states to this rank."""
        parameters = {id(p): p for model in self._models for p in model.parameters()}
        self._backend.spread(
            [*(p for p in parameters.values() if not is_sharded(p)), *self._buffers()]
        )
        for optimizer in self._optimizers:
            self._align(optimizer)

    def aligned(self, train: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that begins with the chief's buffers, as each forward pass of torch's
        DistributedDataParallel does.
        """
        modules = [module for model in self._models for module in model.modules()]
        normalizations = [module for module in modules if _is_normalization(module)]
        are_others = any(module._buffers for module in modules if not _is_normalization(module))
        if not are_others and not normalizations:
            return train

        def aligned(*batch: Any) -> Any:
            # A normalization may be put into evaluation mode at any time.
            if are_others or not all(each.training for each in normalizations):
                self.align_buffers(used=True)
            return train(*batch)

        return aligned

    def align_buffers(self, *, used: bool = False) -> None:
        """Copy the chief's buffers: all of them, or with `used` those that a training step may
        read.
        """
        if not used:
            sharding.reshard(self._models)
        self._backend.spread(self._buffers(used=used))

    @contextmanager
    def chiefs_buffers(self) -> Iterator[None]:
        """Give this rank the chief's buffers in the body, and then its own again.

        Those that the body changes stay as they are then.
        """
        before = {key: each.detach().clone() for key, each in self._named_buffers().items()}
        self.align_buffers()
        given = {key: each.detach().clone() for key, each in self._named_buffers().items()}
        try:
            yield
        finally:
            now = self._named_buffers()
            for key in before.keys() & now.keys():
                own, chiefs = before[key], given[key]
                if not _same(own, chiefs) and _same(now[key], chiefs):
                    now[key].data.copy_(own)

    def _named_buffers(self) -> dict[tuple[int, str], torch.Tensor]:
        return {
            (index, name): buffer
            for index, model in enumerate(self._models)
            for name, buffer in model.named_buffers()
        }

    def _buffers(self, *, used: bool = False) -> list[torch.Tensor]:
        """Return the current buffers. A module may assign a new tensor to one at any time."""
        modules = (module for model in self._models for module in model.modules())
        return list(
            {
                id(buffer): buffer
                for module in modules
                for buffer in module._buffers.values()
                if buffer is not None
                and not (used and module.training and _is_normalization(module))
            }.values()
        )

    def fingerprint(self) -> str:
        """Return a checksum of the bits of all parameters that this rank holds."""
        sharding.reshard(self._models)
        checksum = hashlib.blake2b()
        for model in self._models:
            for parameter in model.parameters():
                if not is_sharded(parameter):
                    checksum.update(_bits(parameter))
        if not self._sharded:
            return checksum.hexdigest()
        return checksum.hexdigest() + sharding.fingerprint(
            self._backend, self._models, self._optimizers, self._steps
        )

    def _stepped(self, *arguments: Any) -> None:
        self._steps += 1

    def _align(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy the chief's optimizer state: its tensors in place, or all of it if the ranks' states
        differ in structure.
        """
        facts, tensors = _facts(optimizer)
        everyone = self._backend.allgather(facts)
        if all(theirs == everyone[0] for theirs in everyone):
            self._backend.spread(tensors)
            return
        if self._sharded:
            raise TrialError(
                "the ranks' optimizers hold different things; make and restore them alike on each"
                " rank"
            )
        state = self._backend.broadcast(optimizer.state_dict())
        if self._backend.ranks.rank:
            with types_kept([optimizer]):
                optimizer.load_state_dict(state)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits."""
    return one.shape == other.shape and _bits(one) == _bits(other)


def _bits(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _is_normalization(module: nn.Module) -> bool:
    """Return whether a module is one of torch's that keeps running statistics.

    A training step does not read them, except in evaluation mode.
    """
    return isinstance(module, _NormBase) and type(module).__module__.startswith("torch.nn.")


def _facts(optimizer: torch.optim.Optimizer) -> tuple[Any, list[torch.Tensor]]:
    """Return the facts that must be equal on all ranks before tensors can be exchanged in place,
    and the tensors.
    """
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
        {name: repr(value) for name, value in group.items() if name != "params"}
        for group in state["param_groups"]
    ]
    return (groups, described), tensors

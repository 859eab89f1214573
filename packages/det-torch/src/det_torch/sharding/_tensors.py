"""What is asked of tensors and modules that may be sharded, without importing what shards them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..backends import TorchBackend


def is_sharded(value: Any) -> bool:
    """Tell whether a value is a DTensor; whoever has one has imported its module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def like(tensor: torch.Tensor, model: Any) -> Any:
    """Return this rank's part of a tensor that every rank has whole, divided as another one is."""
    from torch.distributed.tensor import distribute_tensor

    there = tensor.to(model.device)
    return distribute_tensor(there, model.device_mesh, model.placements, src_data_rank=None)


def reshard(models: Iterable[nn.Module]) -> None:
    """Let modules that a forward pass has left whole, as a validation does the outermost, have their parts again."""
    for model in models:
        for module in model.modules():
            if callable(give_back := getattr(module, "reshard", None)) and hasattr(module, "unshard"):
                give_back()


def fingerprint(
    backend: TorchBackend, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], steps: int
) -> str:
    """Return a checksum that ranks have in common only if their parts are of one model.

    Parts differ, but where the model is also copied (a mesh of two dimensions) those of the same place must not. All ranks have
    stepped as often, and at the same rates.
    """
    mine = [p for model in models for p in model.parameters() if is_sharded(p)]
    rates = [[group.get("lr") for group in optimizer.param_groups] for optimizer in optimizers]
    facts = repr((steps, rates))
    everyone = backend.allgather([_place(mine), _digest(mine)])
    same = {digest for place, digest in everyone if place == _place(mine)}
    return facts if len(same) == 1 else f"{facts} {_digest(mine)}"


def _place(parameters: Sequence[Any]) -> list[list[int]]:
    """Return which part a rank has: its coordinates, but for those along which copies lie."""
    found: list[list[int]] = []
    for parameter in parameters:
        coordinates = parameter.device_mesh.get_coordinate() or []
        placed = zip(coordinates, parameter.placements, strict=False)
        here = [int(at) for at, placement in placed if placement.is_shard()]
        if here not in found:
            found.append(here)
    return found


def _digest(parameters: Iterable[Any]) -> str:
    checksum = hashlib.blake2b()
    for parameter in parameters:
        local = parameter.detach().to_local().cpu().contiguous()
        checksum.update(local.reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()

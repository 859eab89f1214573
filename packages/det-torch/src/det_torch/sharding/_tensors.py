"""Operations on tensors and modules that may be sharded.

Nothing here imports the code that shards them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..backends import TorchBackend


def is_sharded(value: Any) -> bool:
    """Return whether a value is a DTensor. If its module is not imported, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def like(tensor: torch.Tensor, model: Any) -> Any:
    """Return this rank's part of a tensor that every rank has whole, sharded like `model`."""
    from torch.distributed.tensor import distribute_tensor

    there = tensor.to(model.device)
    return distribute_tensor(there, model.device_mesh, model.placements, src_data_rank=None)


def reshard(models: Iterable[nn.Module]) -> None:
    """Free the gathered parameters of modules that a forward pass has left whole, such as the
    outermost after a validation.
    """
    for model in models:
        for module in model.modules():
            if callable(give_back := getattr(module, "reshard", None)) and hasattr(
                module, "unshard"
            ):
                give_back()


def fingerprint(
    backend: TorchBackend,
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    steps: int,
) -> str:
    """Return a checksum that is equal on all ranks only if their parts belong to one model.

    Parts differ. Where the model is also copied (on a mesh of two dimensions), parts of the same
    place must be equal. All ranks must have stepped equally often and with the same learning rates.
    """
    mine = [p for model in models for p in model.parameters() if is_sharded(p)]
    rates = [[group.get("lr") for group in optimizer.param_groups] for optimizer in optimizers]
    facts = repr((steps, rates))
    everyone = backend.allgather([_place(mine), _digest(mine)])
    same = {digest for place, digest in everyone if place == _place(mine)}
    return facts if len(same) == 1 else f"{facts} {_digest(mine)}"


def _place(parameters: Sequence[Any]) -> list[list[int]]:
    """Return which part a rank has: its mesh coordinates, without those of
    dimensions with copies.
    """
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

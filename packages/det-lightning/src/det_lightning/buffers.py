"""Saves the buffers with which each rank trains, where they are not the chief's.

torch's DistributedDataParallel copies the chief's buffers to every rank before a forward pass, but
not if the pass before reduced no gradients. Therefore ranks have running statistics of their own
with manual optimization, for which Lightning reduces gradients later, and while gradients
accumulate. Under other strategies they always do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from torch.nn.parallel import DistributedDataParallel

from det_core import Communicator
from det_torch.live import tensor_bytes
from det_torch.structure import saved_buffers


def are_broadcast(trainer: pl.Trainer) -> bool:
    """Return whether the next forward pass begins with the chief's buffers on every rank."""
    model = trainer.strategy.model
    if not isinstance(model, DistributedDataParallel):
        return False
    return bool(model.will_sync_module_buffers())  # type: ignore[no-untyped-call]


def capture(trainer: pl.Trainer, distributed: Communicator) -> dict[str, Any]:
    """Return the buffers of this rank that differ from the chief's. Every rank must call this.

    There are none if the next forward pass replaces them.
    """
    broadcast = are_broadcast(trainer)
    found = {"broadcast": broadcast, "own": {}}
    if distributed.size > 1:
        buffers = {} if broadcast else saved_buffers(trainer.lightning_module)
        own = {name: hashlib.blake2b(tensor_bytes(each)).digest() for name, each in buffers.items()}
        chiefs = distributed.broadcast(own)
        found["own"] = {name: buffers[name] for name in buffers if own[name] != chiefs.get(name)}
    return found


def restore(trainer: pl.Trainer, saved: Mapping[str, Any]) -> None:
    """Restore what `capture` returned. The module must have the chief's buffers."""
    own = saved["own"]
    for name, buffer in saved_buffers(trainer.lightning_module).items():
        if name in own:
            buffer.data.copy_(own[name])
    model = trainer.strategy.model
    if isinstance(model, DistributedDataParallel):
        # Otherwise the first pass of a resumed run would replace them.
        model.require_forward_param_sync = saved["broadcast"]

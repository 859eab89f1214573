"""Stores in checkpoints the plain attributes of the trainer, callbacks and the module that training
changes.

Lightning's documentation collects the outputs of an epoch in a list of the module. Callbacks set
`trainer.accumulate_grad_batches` where an epoch begins, and a run that resumes within the epoch
does not call them.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torchmetrics import Metric

from det_core import TrialError
from det_torch.arrays import is_numpy
from det_torch.live import tensor_bytes
from det_torch.sharding import is_sharded
from det_torch.state import check_plain, is_plain

from .internals import attributes_of_a_module, overrides

_CONTAINERS = (list, tuple, dict, set, deque)
_DEEPEST = 16
_NOT_USERS = ("lightning", "pytorch_lightning", "det_lightning")
# Lightning and det set these themselves.
_OF_TRAINER = frozenset({"should_stop", "callbacks", "datamodule", "val_check_batch"})


class Attributes:
    """The plain attributes of a trainer during a fit, compared with those at the
    start of training.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._of_lightning = frozenset(attributes_of_a_module())
        self._named: set[str] = set()
        self._before = {
            owner: {name: _checksum(value) for name, value in self._of(thing).items()}
            for owner, thing in self._owners()
        }

    def changed(self) -> dict[str, dict[str, Any]]:
        """Return the values that training has changed, by owner and name.

        Each is a list `[value, accelerated]`. Warns once of each value that a checkpoint cannot
        hold, unless its owner saves state itself.
        """
        found: dict[str, dict[str, Any]] = {}
        own = _storages(self._trainer.lightning_module)
        for owner, thing in self._owners():
            before = self._before.get(owner, {})
            for name, value in self._of(thing).items():
                if name in before and before[name] == _checksum(value):
                    continue
                tensors = list(_tensors(value, _DEEPEST))
                if any(_storage(each) in own for each in tensors):
                    continue
                try:
                    kept = _kept(value)
                    check_plain(kept, name, owner, numpy=True)
                except (TrialError, RecursionError):
                    self._name(owner, name, value)
                else:
                    accelerated = any(each.device.type != "cpu" for each in tensors)
                    found.setdefault(owner, {})[name] = [kept, accelerated]
        return found

    def put_back(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the values that `changed` returned. Containers that exist get the saved contents."""
        device = self._trainer.strategy.root_device
        for owner, thing in self._owners():
            module = isinstance(thing, torch.nn.Module)
            parameters = dict(thing.named_parameters(recurse=False)) if module else {}
            for name, (value, accelerated) in saved.get(owner, {}).items():
                # It was an attribute in place of a parameter, as `torch.nn.utils.prune` makes it.
                if name in parameters:
                    continue
                made = _moved(value, device) if accelerated else value
                there = vars(thing).get(name)
                if isinstance(there, (list, deque)) and isinstance(made, list):
                    there.clear()
                    there.extend(made)
                elif isinstance(there, (dict, set)) and isinstance(made, (dict, set)):
                    there.clear()
                    there.update(made)
                else:
                    setattr(thing, name, made)

    def _owners(self) -> Iterator[tuple[str, Any]]:
        """Yield the trainer, callbacks that save no state, the module, and its submodules except
        metrics.
        """
        yield "the trainer", self._trainer
        for index, callback in enumerate(self._trainer.callbacks):  # type: ignore[attr-defined]
            cls = type(callback)
            saves = cls.state_dict is not pl.Callback.state_dict or _saves(callback)
            if not saves and cls.__module__.partition(".")[0] not in _NOT_USERS:
                yield f"the callback {cls.__name__} ({index})", callback
        metrics: list[str] = []
        for name, module in self._trainer.lightning_module.named_modules():
            if isinstance(module, Metric):
                metrics.append(f"{name}.")
            elif not name.startswith(tuple(metrics)):
                yield f"the module {name}".rstrip(), module

    def _of(self, thing: Any) -> dict[str, Any]:
        held = vars(thing).items()
        if thing is self._trainer:
            return {
                name: value for name, value in held if name[0] != "_" and name not in _OF_TRAINER
            }
        if isinstance(thing, pl.LightningModule):
            return {name: value for name, value in held if name not in self._of_lightning}
        if isinstance(thing, torch.nn.Module):
            return {name: value for name, value in held if name[0] != "_" and name != "training"}
        return dict(held)

    def _name(self, owner: str, name: str, value: Any) -> None:
        module = self._trainer.lightning_module
        place = f"{owner}.{name}"
        if (
            owner == "the trainer"
            or overrides(module, "on_save_checkpoint")
            or place in self._named
        ):
            return
        if not isinstance(value, _CONTAINERS):
            return
        self._named.add(place)
        way = "state_dict()" if owner.startswith("the callback") else "on_save_checkpoint()"
        warnings.warn(
            f"training changes {name} of {owner}, which holds {_stranger(value)} and is in no"
            " checkpoint: a run that is resumed within an epoch begins with it as it is built;"
            f" save it in {way}, keep tensors and numbers there, or make it a metric of"
            " torchmetrics that is an attribute of the module",
            stacklevel=1,
        )


def _saves(callback: Any) -> bool:
    return type(callback).on_save_checkpoint is not pl.Callback.on_save_checkpoint


def _checksum(value: Any) -> bytes:
    """Return a short checksum of `_digest`, which may be large for a module's data."""
    return hashlib.blake2b(repr(_digest(value)).encode(errors="replace"), digest_size=16).digest()


def _digest(value: Any, depth: int = _DEEPEST) -> Any:
    """Return a value that distinguishes contents: the number of updates of a metric, and the type
    of other objects.
    """
    if isinstance(value, torch.Tensor):
        return "tensor", (
            None if is_sharded(value) else hashlib.blake2b(tensor_bytes(value)).digest()
        )
    if not depth:
        return type(value)
    if isinstance(value, dict):
        return type(value), [(repr(key), _digest(inner, depth - 1)) for key, inner in value.items()]
    if isinstance(value, set):
        return type(value), sorted(map(repr, value))
    if isinstance(value, _CONTAINERS):
        return type(value), [_digest(inner, depth - 1) for inner in value]
    if isinstance(value, Metric):
        return "metric", value.update_count
    if is_numpy(value):
        return str(value.dtype), value.shape, value.tobytes()
    return (type(value), repr(value)) if is_plain(value) else type(value)


def _kept(value: Any) -> Any:
    """Return a value as a checkpoint holds it, with copies of its containers of safe kinds."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if type(value) in (dict, defaultdict):
        return {key: _kept(inner) for key, inner in value.items()}
    if type(value) in (list, deque):
        return [_kept(inner) for inner in value]
    if type(value) is tuple:
        return tuple(_kept(inner) for inner in value)
    return set(value) if type(value) is set else value


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(inner, device) for key, inner in value.items()}
    return (
        type(value)(_moved(inner, device) for inner in value)
        if isinstance(value, (list, tuple))
        else value
    )


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, _CONTAINERS) and depth:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner, depth - 1)


def _storages(module: torch.nn.Module) -> set[int]:
    """Return the addresses of parameters and buffers.

    A tensor that shares their memory has their values.
    """
    return {_storage(each) for each in (*module.parameters(), *module.buffers())} - {0}


def _storage(tensor: torch.Tensor) -> int:
    if is_sharded(tensor) or tensor.layout is not torch.strided or tensor.is_meta:
        return 0
    return tensor.untyped_storage().data_ptr()


def _stranger(value: Any, depth: int = _DEEPEST) -> str:
    """Return the type of the first object in a container that is not plain, or else of the
    container.
    """
    for inner in (value.values() if isinstance(value, dict) else value) if depth else ():
        if isinstance(inner, _CONTAINERS):
            if found := _stranger(inner, depth - 1):
                return found
        elif not is_plain(inner):
            return type(inner).__name__
    return type(value).__name__ if depth == _DEEPEST else ""

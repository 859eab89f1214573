"""Copies a state to host memory, so that the copy can be written while training continues."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Copies:
    """Copies states, one at a time. Each copy reuses the memory of the previous one."""

    def __init__(self) -> None:
        self._memory: dict[tuple[int, bool], list[torch.UntypedStorage]] = {}

    def writing(
        self, contents: dict[str, Any], write: Callable[[dict[str, Any], Path], None]
    ) -> Callable[[Path], None]:
        """Copy `contents` and return a function that calls `write` with the copy."""
        copied = self.take(contents)
        return lambda path: write(copied, path)

    def take(self, contents: dict[str, Any]) -> dict[str, Any]:
        """Return a copy that `torch.save` writes as it would write `contents`.

        This overwrites the previous copy.

        Tensors that share memory share it in the copy too. The exception are tensors that are more
        than a view of their memory, such as DTensors.
        """
        free, self._memory = self._memory, {}
        storages: dict[int, torch.UntypedStorage] = {}
        memo: dict[int, Any] = {}
        devices = set()
        with torch.no_grad():
            for tensor in _tensors(contents):
                if id(tensor) in memo:
                    continue
                if not _is_view(tensor):
                    memo[id(tensor)] = (
                        tensor.detach().clone().cpu().requires_grad_(tensor.requires_grad)
                    )
                    continue
                source = tensor.untyped_storage()
                if source._cdata not in storages:
                    storages[source._cdata] = self._copied(source, free)
                    devices.add(source.device)
                memo[id(tensor)] = _like(tensor, storages[source._cdata])
        for device in devices:
            if device.type == "cuda":
                # Wait for the copies, before training changes their sources.
                torch.cuda.synchronize(device)
        copied: dict[str, Any] = copy.deepcopy(contents, memo)
        return copied

    def _copied(
        self, source: torch.UntypedStorage, free: dict[tuple[int, bool], list[torch.UntypedStorage]]
    ) -> torch.UntypedStorage:
        pinned, size = source.device.type == "cuda", source.nbytes()
        kind = (size, pinned)
        if waiting := free.get(kind):
            target = waiting.pop()
        else:
            target = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).untyped_storage()
        self._memory.setdefault(kind, []).append(target)
        if pinned:
            target.copy_(source, non_blocking=True)
        else:
            # NumPy's copy bypasses the caches. On one thread it takes half the time of torch's.
            np.copyto(_bytes(target), _bytes(source))
        return target


def _bytes(storage: torch.UntypedStorage) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _tensors(inner)


def _is_view(tensor: torch.Tensor) -> bool:
    """Return whether storage, offset, shape and strides describe a tensor fully.

    They do not for a DTensor or a sparse tensor.
    """
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _like(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    made = torch.empty(0, dtype=tensor.dtype)
    made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    if type(tensor) is torch.nn.Parameter:
        made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    else:
        made.requires_grad_(tensor.requires_grad)
    vars(made).update(copy.deepcopy(vars(tensor)))
    return made

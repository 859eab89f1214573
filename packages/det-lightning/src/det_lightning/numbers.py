"""Handles NumPy's numbers and arrays in Lightning's own file.

The file gets plain numbers and tensors, which `weights_only` can read. det's file holds the
originals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from det_torch.arrays import is_numpy, rebuilt

Found = dict[str, dict[int, Any]]


def without_numpy(checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any], Found]:
    """Return a checkpoint with plain values in place of NumPy's, and NumPy's values by key and leaf
    number.
    """
    found: Found = {}
    plain = {}
    for key, value in checkpoint.items():
        own: dict[int, Any] = {}

        def replaced(n: int, leaf: Any, own: dict[int, Any] = own) -> Any:
            if not is_numpy(leaf):
                return leaf
            own[n] = leaf
            return _plain(leaf)

        plain[key] = _mapped(value, replaced)
        if own:
            found[key] = own
    return plain, found


def with_numpy(checkpoint: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """Return the checkpoint that `without_numpy` got."""
    whole = dict(checkpoint)
    for key, own in found.items():
        if key in whole:
            whole[key] = _mapped(whole[key], lambda n, leaf, own=own: own.get(n, leaf))  # type: ignore[misc]
    return whole


def put_back_behind_loading(trainer: pl.Trainer, found: Found) -> None:
    """Make Lightning resume with NumPy's numbers, whatever strategy reads the checkpoint of this
    fit.
    """
    strategy = trainer.strategy
    load = strategy.load_checkpoint

    def loaded(*args: Any, **kwargs: Any) -> dict[str, Any]:
        del strategy.load_checkpoint
        return with_numpy(load(*args, **kwargs), found)

    strategy.load_checkpoint = loaded  # type: ignore[method-assign]


def _mapped(value: Any, change: Callable[[int, Any], Any]) -> Any:
    """Return nested containers with changed leaves, numbered in order. A set counts as one leaf."""
    count = -1

    def each(inner: Any) -> Any:
        nonlocal count
        if isinstance(inner, dict) or type(inner) in (list, tuple):
            return rebuilt(inner, each)
        count += 1
        return change(count, inner)

    return each(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return str(value) if value.dtype.kind in "mM" else value.item()
    return torch.from_numpy(value.copy()) if value.dtype.kind in "biufc" else str(value)

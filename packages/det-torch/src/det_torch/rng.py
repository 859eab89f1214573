"""The states of the global random generators, as plain data."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


def rng_state() -> dict[str, Any]:
    """Return the states of all global generators."""
    state: dict[str, Any] = {
        "cpu_rng_state": torch.random.get_rng_state(),
        "random_rng_state": random.getstate(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        keys = torch.from_numpy(keys.astype("int64"))
        state["np_rng_state"] = [name, keys, int(position), int(has_gauss), float(gauss)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["gpu_rng_state"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore what `rng_state` returned, or what Determined saved."""
    if "cpu_rng_state" in state:
        torch.random.set_rng_state(state["cpu_rng_state"])
    if "random_rng_state" in state:
        version, keys, gauss = state["random_rng_state"]
        random.setstate((version, tuple(keys), gauss))
    if "np_rng_state" in state:
        import numpy

        name, keys, position, has_gauss, gauss = state["np_rng_state"]
        array = keys.numpy() if isinstance(keys, torch.Tensor) else numpy.asarray(keys)
        numpy.random.set_state((name, array.astype("uint32"), position, has_gauss, gauss))
    if "gpu_rng_state" in state and torch.cuda.is_available():
        saved = state["gpu_rng_state"]
        states = [saved] if isinstance(saved, torch.Tensor) else list(saved)
        torch.cuda.set_rng_state_all(states[: torch.cuda.device_count()])


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Give the generators back as they were, whatever the body draws."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)

"""Saves and restores the global random generators as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from det_core.train.rng import plain_host_rng, set_host_rng

_NAMES = {"python": "random_rng_state", "numpy": "np_rng_state"}


def rng_state() -> dict[str, Any]:
    """Return the states of all global generators."""
    host = plain_host_rng()
    state = {"cpu_rng_state": torch.random.get_rng_state()} | {
        _NAMES[name]: host[name] for name in host
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["gpu_rng_state"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore the states that `rng_state` returned or Determined saved."""
    if "cpu_rng_state" in state:
        torch.random.set_rng_state(state["cpu_rng_state"])
    set_host_rng({name: state[ours] for name, ours in _NAMES.items() if ours in state})
    if "gpu_rng_state" in state and torch.cuda.is_available():
        saved = state["gpu_rng_state"]
        states = [saved] if isinstance(saved, torch.Tensor) else list(saved)
        torch.cuda.set_rng_state_all(states[: torch.cuda.device_count()])


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Restore the generators at the end of the body."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)

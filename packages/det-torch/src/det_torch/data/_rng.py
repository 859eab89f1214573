"""Derived seeds, and a context that replaces the global generators for a while."""

from __future__ import annotations

from hashlib import blake2b
from types import TracebackType
from typing import Any

import torch

from det_core.train.rng import host_rng, seed_host, set_host_rng


def derive(seed: int, *numbers: int) -> int:
    """Return a 63-bit seed that depends on all of the numbers and on nothing else."""
    text = ",".join(map(str, (seed, *numbers)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_on_host(seed: int) -> None:
    """Seed the global generators of Python, NumPy (if it is imported) and torch on the host.

    This takes 10 µs.
    """
    seed_host(seed)
    torch.default_generator.manual_seed(seed)


def seed_everything(seed: int) -> None:
    """Seed the generators of the host, and those of the accelerator if this process uses it.

    `torch.manual_seed` itself takes 200 µs in a process that does not use it, as it stores the seed
    for a later use.
    """
    seed_on_host(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's lack
        torch.cuda.manual_seed_all(seed)


class PrivateRng:
    """A context with its own state of the global generators.

    It is seeded once and continues at the next use.

    Generators of accelerators are unchanged, as samplers and datasets draw on the host.
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._own: tuple[Any, ...] = ()
        self._outside: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._outside = _states()
        if self._seed is None:
            _restore(self._own)
        else:
            seed_on_host(self._seed)
            self._seed = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._own = _states()
        _restore(self._outside)


def _states() -> tuple[Any, ...]:
    return host_rng(), torch.get_rng_state()


def _restore(states: tuple[Any, ...]) -> None:
    set_host_rng(states[0])
    torch.set_rng_state(states[1])

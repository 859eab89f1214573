"""Seeds for parts of a trial, and the global generators put aside while somebody else draws."""

from __future__ import annotations

from hashlib import blake2b
from types import TracebackType
from typing import Any

import torch

from det_core.rng import host_rng, seed_host, set_host_rng


def derive(seed: int, *numbers: int) -> int:
    """Return a 63-bit seed that depends on all of the numbers, and on nothing else."""
    text = ",".join(map(str, (seed, *numbers)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_on_host(seed: int) -> None:
    """Seed the global generators of Python, NumPy (where it is imported) and torch on the host; 10 µs."""
    seed_host(seed)
    torch.default_generator.manual_seed(seed)


def seed_everything(seed: int) -> None:
    """Seed those of the host, and of the accelerator where this process uses it.

    `torch.manual_seed` itself takes 200 µs in a process that does not, to remember the seed until it would.
    """
    seed_on_host(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's lack
        torch.cuda.manual_seed_all(seed)


class PrivateRng:
    """A context in which the global generators are others, seeded once, which go on where the last use left them.

    Those of accelerators stay as they are: samplers and datasets draw on the host.
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own = _states()
        _restore(self._outside)


def _states() -> tuple[Any, ...]:
    return host_rng(), torch.get_rng_state()


def _restore(states: tuple[Any, ...]) -> None:
    set_host_rng(states[0])
    torch.set_rng_state(states[1])

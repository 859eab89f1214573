"""Makes the random numbers in the reading of data depend on the seed and the position only."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from det_core.train.rng import untouched_host_rng


def permutation(length: int, seed: int, epoch: int) -> Any:
    """Return the order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(length)


class SeededReading:
    """Runs the user's reading of data with Python's and NumPy's generators seeded for a position.

    Afterwards it restores the process's generators, from which training draws. While `paused`, no
    reader uses them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._lock = threading.RLock()

    @contextmanager
    def at(self, *position: int) -> Iterator[None]:
        """Read with generators that depend on the seed and these numbers only."""
        with self._lock, untouched_host_rng():
            begin(self._seed, *position)
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep readers from using the generators inside the body."""
        with self._lock:
            yield


def begin(*numbers: int) -> None:
    """Seed Python's and NumPy's generators with numbers."""
    np.random.seed(np.array(numbers, dtype=np.uint64).view(np.uint32))
    random.seed(":".join(map(str, numbers)))

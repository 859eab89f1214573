"""What is random in the reading of data, as a function of the seed and the position."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from det_core.rng import untouched_host_rng


def permutation(length: int, seed: int, epoch: int) -> Any:
    """Return the order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(length)


class SeededReading:
    """Runs the user's reading of data under Python's and NumPy's generators as they are for a position.

    The generators of the process, which are training's, are put back afterwards. `paused` keeps readers away from them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._lock = threading.RLock()

    @contextmanager
    def at(self, *position: int) -> Iterator[None]:
        """Read under generators that are a function of the seed and these numbers."""
        with self._lock, untouched_host_rng():
            begin(self._seed, *position)
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no reader touch the generators meanwhile."""
        with self._lock:
            yield


def begin(*numbers: int) -> None:
    """Seed Python's and NumPy's generators by numbers."""
    np.random.seed(np.array(numbers, dtype=np.uint64).view(np.uint32))
    random.seed(":".join(map(str, numbers)))

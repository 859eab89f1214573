"""Randomness of a dataset in worker processes: seeded for each batch, so that any batch can be read again alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from ._rng import derive, seed_everything


class SeededDataset(Dataset[Any]):
    """A map-style dataset that is asked for `(number of the batch, indices)` and seeds its process by the former.

    The function that collates runs right after, in the same process, and so is decided too.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.inner = dataset
        self._seed = seed

    def __getitems__(self, numbered: tuple[int, Any]) -> Any:
        number, indices = numbered
        seed_everything(derive(self._seed, number))
        many = getattr(self.inner, "__getitems__", None)
        return many(indices) if many else [self.inner[index] for index in indices]

    def __getitem__(self, numbered: tuple[int, Any]) -> Any:
        number, index = numbered
        seed_everything(derive(self._seed, number))
        return self.inner[index]

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet: it is being unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)


LINGER_SECONDS = 10


class WorkerInit:
    """Prepares a loader's process, then calls the user's own `worker_init_fn`.

    `get_worker_info().dataset` shows the user's dataset, not ours. Ctrl-C and SIGTERM, which reach a whole group of processes,
    are for the training process, which needs more batches until it has saved: the first is ignored, the other ends this one later.
    """

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _linger)
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, SeededDataset):
            # torch freezes the object, and offers no other way to say what a worker's dataset is
            object.__setattr__(info, "dataset", info.dataset.inner)
        if self._then is not None:
            self._then(worker)


def _linger(number: int, frame: object) -> None:
    # A status of 0, and no death by the signal, as torch raises in the training process, wherever it is, for any other.
    signal.signal(signal.SIGALRM, lambda number, frame: os._exit(0))
    signal.alarm(signal.alarm(0) or LINGER_SECONDS)

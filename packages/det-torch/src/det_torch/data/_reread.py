"""A source for iterables of batches without state and indices.

It reaches a position by reading up to it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, final

from det_core.errors import TrialError

from ._order import announce, empty
from ._rng import PrivateRng, derive
from ._sharding import read_by_all, samplers
from ._sources import Source
from ._torch import again, is_plain, shut_down


@final
class RereadSource(Source):
    """Any iterable of batches, or a loader of an iterable dataset.

    It is read again for every epoch.

    Each epoch starts, and its first batch is read, with generators seeded by (seed, epoch). A
    checkpoint holds the position where the epoch began, so that at most one epoch is read again.
    """

    kind = "epoch"

    def __init__(self, loader: Any, seed: int, rank: int, size: int) -> None:
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise TrialError(
                f"the training data loader is {loader!r:.60}; give a DataLoader or an iterable of"
                " batches"
            )
        super().__init__(loader, rank, size)
        self.advice = read_by_all(loader, size, "training")
        self._seed = seed
        self._name = type(loader.dataset if is_plain(loader) else loader).__name__
        self._epoch, self._began = 0, 0
        self._inner: Any = None
        self._stream: Generator[Any] | None = None
        self.warning = (
            f"the training data ({self._name}) has no state_dict and load_state_dict: after a"
            " restart the batches of its epoch are read again and dropped, and what it draws at"
            " random may differ"
        )

    def batches(self, done: int) -> Iterator[Any]:
        self.close()
        target = done * self.step + self.first
        if target < self._began:
            self._epoch = self._began = 0
        self._stream = self._generate(target)
        return self._stream

    def _generate(self, target: int) -> Generator[Any]:
        while True:
            at, batches = self._open(target)
            left = None if self.limit is None else self._began + self.limit - at
            for batch in islice(batches, left):
                if at == target:
                    target += self.step
                    yield batch
                at += 1
            self._end(at)

    def _open(self, target: int) -> tuple[int, Iterator[Any]]:
        """Start the epoch and drop the batches before `target`.

        Returns the position reached and an iterator over the rest.
        """
        with PrivateRng(derive(self._seed, self._epoch)):
            self._inner = iter(self._items())
            drop = max(0, target - self._began)
            drop = drop if self.limit is None else min(drop, self.limit)
            if drop:
                return self._began + sum(1 for _ in islice(self._inner, drop)), self._inner
            return self._began, chain(list(islice(self._inner, 1)), self._inner)

    def _items(self) -> Iterable[Any]:
        if not is_plain(self.loader):
            announce(self._epoch, self.loader, *samplers(self.loader))
            return self.loader  # type: ignore[no-any-return]
        announce(self._epoch, self.loader.dataset)
        return again(self.loader, derive(self._seed, self._epoch))

    def _end(self, at: int) -> None:
        if at == self._began and iter(self.loader) is self.loader and at:
            raise TrialError(
                f"the training data loader is a {self._name} that ended after {at} batches and"
                " cannot be read again; give a list, a DataLoader, or an object whose __iter__"
                " starts again"
            )
        if at == self._began:
            raise TrialError(empty(f"this {self._name} yields nothing in epoch {self._epoch}"))
        # An iterator that is its own loader continues in the next epoch where this one was cut
        # short.
        if self._inner is not self.loader:
            shut_down(self._inner, self.loader)
        self._epoch, self._began = self._epoch + 1, at

    def state(self, done: int) -> dict[str, Any] | None:
        return {"kind": self.kind, "epoch": self._epoch, "began": self._began}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._epoch, self._began = state["epoch"], state["began"]

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            shut_down(self._inner, self.loader)
            self._stream = self._inner = None

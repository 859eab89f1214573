"""A source for iterables of batches without state and indices.

It reaches a position by reading up to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, final

from torch.utils.data import Dataset

from det_core.errors import TrialError

from ._attributes import (
    changed_attributes,
    find_datasets,
    read_attributes,
    restore_attributes,
)
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

    It also holds the numbers and text in the attributes of an iterable dataset, as they were when
    the epoch began, with which it is read again, and as they are after the batches that were read.
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
        found = find_datasets(loader.dataset if is_plain(loader) else loader)
        self._datasets = {path: each for path, each in found.items() if isinstance(each, Dataset)}
        # The attributes of other objects may be a library's own. They are not set.
        self._others = {path: each for path, each in found.items() if path not in self._datasets}
        self._first, self._first_of_others = map(read_attributes, (self._datasets, self._others))
        self._at_start, self._read = read_attributes(self._datasets), 0
        self._restored: Mapping[str, Any] = {}
        self.warning = (
            f"the training data ({self._name}) has no state_dict and load_state_dict: after a"
            " restart the batches of its epoch are read again and dropped, and what it draws at"
            " random may differ"
        )

    def batches(self, done: int) -> Iterator[Any]:
        if self._stream is not None:
            self.restore(self.state(done))
        self.close()
        target = done * self.step + self.first
        if target < self._began:
            self._epoch = self._began = 0
            self._restored = {}
        # What was read is read again before hooks change the attributes for the next epoch.
        opened = self._open(target) if self._restored.get("read") else None
        self._stream = self._generate(target, opened)
        return self._stream

    def _generate(self, target: int, opened: tuple[int, Iterator[Any]] | None) -> Generator[Any]:
        while True:
            at, batches = opened or self._open(target)
            opened = None
            left = None if self.limit is None else self._began + self.limit - at
            for batch in islice(batches, left):
                self._read = at + 1 - self._began
                if at == target:
                    target += self.step
                    yield batch
                at += 1
            self._end(at)

    def _open(self, target: int) -> tuple[int, Iterator[Any]]:
        """Start the epoch and drop the batches before `target`.

        Returns the position reached and an iterator over the rest.
        """
        restored, self._restored = self._restored, {}
        self._at_start, self._read = read_attributes(self._datasets), 0
        with PrivateRng(derive(self._seed, self._epoch)):
            self._inner = iter(self._items())
            drop = max(0, target - self._began)
            drop = drop if self.limit is None else min(drop, self.limit)
            if drop:
                self._drop(min(drop, restored.get("read", 0)))
                changes = restored.get("changed", {})
                restore_attributes(self._datasets, changes, read_attributes(self._datasets))
                self._drop(drop - self._read)
                return self._began + self._read, self._inner
            return self._began, chain(list(islice(self._inner, 1)), self._inner)

    def _drop(self, batches: int) -> None:
        self._read += sum(1 for _ in islice(self._inner, batches))

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

    def state(self, done: int) -> dict[str, Any]:
        self._name_what_is_lost()
        if self._restored:
            return dict(self._restored)
        state = {"kind": self.kind, "epoch": self._epoch, "began": self._began}
        kept = {
            "attributes": changed_attributes(self._at_start, self._first),
            "changed": changed_attributes(read_attributes(self._datasets), self._at_start),
        }
        kept = {key: value for key, value in kept.items() if value}
        return {**state, **kept, "read": self._read} if kept else state

    def restore(self, state: Mapping[str, Any]) -> None:
        self._epoch, self._began, self._restored = state["epoch"], state["began"], state
        restore_attributes(self._datasets, state.get("attributes", {}), self._first)

    def _name_what_is_lost(self) -> None:
        """Warn once of public numbers and text in attributes of other objects than datasets."""
        changes = changed_attributes(read_attributes(self._others), self._first_of_others)
        # An epoch's number is announced again by `set_epoch`.
        known = "epoch" if hasattr(self.loader, "set_epoch") else None
        names = [name for own in changes.values() for name in own if name != known]
        if names := [name for name in names if not name.startswith("_")]:
            self._others = {}
            warnings.warn(
                f"training changes {', '.join(names)} of the training data ({self._name}), which no"
                " checkpoint holds: give it state_dict and load_state_dict",
                stacklevel=1,
            )

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            shut_down(self._inner, self.loader)
            self._stream = self._inner = None

"""The endless stream of training batches of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._libraries import PlacedLoader, keeps_place_in_iterators
from ._loader import DataLoader
from ._reread import RereadSource
from ._sources import IndexedSource, SequenceSource, Source
from ._stateful import StatefulSource, holder_of
from ._torch import is_indexed


class TrainingStream:
    """The batches of one rank, from any batch on, over and over: batch i of the repeated data goes to rank i % size.

    `loader` is det's or torch's DataLoader, a loader with `state_dict` and `load_state_dict`, or any iterable of batches; a
    finite one is read again for every epoch. One whose `det_sharded`, or that of its dataset, is True, or whose samplers know
    of several replicas, gives this rank its share and is not dealt; any other must give the same batches on every rank.

    With worker processes, what a map-style dataset draws at random is seeded for every batch by `seed` and the batch's
    number in the whole stream. Without, it is read in the training process and draws from its global generators: exact,
    too, as they are part of a checkpoint and nothing is read ahead. Generators that a dataset keeps for itself are beyond
    our reach. Neither making a stream nor starting it draws from the global generators.

    Raises TrialError where the data is empty, or ends and cannot be read again.
    """

    def __init__(self, loader: Any, *, seed: int, rank: int, size: int) -> None:
        self._source = _source(loader, seed, rank, size)
        self._size = size
        self._shards = size if self._source.sharded else None

    def batches(self, done: int) -> Iterator[Any]:
        """Return the stream behind the first `done` batches of this rank. A stream that is open is closed."""
        return self._source.batches(done)

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches in an epoch on the chief, which every rank counts by; None where the data has no length."""
        return self._source.batches_per_epoch

    @property
    def exact(self) -> bool:
        """Whether a run that is resumed reads what it would have read if it had not been interrupted."""
        return self.warning is None

    @property
    def warning(self) -> str | None:
        """One sentence for the user where resuming is not exact, or reads data only to drop it."""
        return self._source.warning

    @property
    def advice(self) -> str | None:
        """One sentence for the user where every rank reads all of the data, as it does not say whether it is a share."""
        return self._source.advice

    def state(self, done: int) -> dict[str, Any] | None:
        """Return what a checkpoint must hold of this rank's data after `done` batches; None where `done` says it all."""
        state = self._source.state(done)
        if state is not None and self._size > 1:
            state["size"] = self._size
        return state if self._shards is None else {"shards": self._shards, "state": state}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Take up a state of this rank, or of the chief where there is none, before `batches` is called.

        One of another kind of loader, or of data that was sharded otherwise, is left alone, with a warning.
        """
        shards = (state or {}).get("shards")
        if state is not None and shards != self._shards:
            self._source.warning = (
                f"the training data was {_dealt(shards)} when the checkpoint was written and is {_dealt(self._shards)} now, so "
                "that some records may be repeated and some missed"
            )
            return
        if state is not None and shards is not None:
            state = state["state"]
        if state is None:
            return
        size = state.get("size", 1)
        if size != self._size and self._source.kind != "index":
            self._source.warning = (
                f"the place in the training data was kept by {size} ranks, whose batches were of another size than those of "
                f"{self._size}: what lies before it is read again and dropped"
            )
        elif state.get("kind") == self._source.kind:
            self._source.restore(state)
        else:
            self._source.warning = (
                "the checkpoint was written with another kind of training data loader, so that some records may be repeated "
                "and some missed; resume with the loader that it was written with"
            )

    def close(self) -> None:
        """End what reads ahead: worker processes, threads, open iterators."""
        self._source.close()


def _dealt(shards: int | None) -> str:
    return "dealt by det" if shards is None else f"in {shards} shards of its own"


def _source(loader: Any, seed: int, rank: int, size: int) -> Source:
    if isinstance(loader, DataLoader):
        loader = loader.get_data_loader()
    if is_indexed(loader):
        return IndexedSource(loader, seed, rank, size)
    if keeps_place_in_iterators(loader):
        loader = PlacedLoader(loader)
    holder = holder_of(loader)
    if holder is not None:
        return StatefulSource(loader, holder, seed, rank, size)
    if isinstance(loader, Sequence) and not isinstance(loader, (str, bytes)):
        return SequenceSource(loader, rank, size)
    return RereadSource(loader, seed, rank, size)

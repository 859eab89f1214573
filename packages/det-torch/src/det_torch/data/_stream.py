"""The endless stream of training batches of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._libraries import PlacedLoader, keeps_place_in_iterators
from ._loader import DataLoader
from ._reread import RereadSource
from ._sharding import is_sharded
from ._sources import IndexedSource, SequenceSource, Source, rank_batches
from ._stateful import StatefulSource, holder_of
from ._torch import is_indexed


class TrainingStream:
    """The repeated batches of one rank, from any position.

    Batch i of the repeated data goes to rank i % size.

    `loader` is det's or torch's DataLoader, a loader with `state_dict` and `load_state_dict`, or
    any iterable of batches. A finite iterable is read again for every epoch. Data is already
    sharded if `det_sharded` of the loader or its dataset is True, or if its samplers know of
    several replicas. It is not dealt. Any other loader must give the same batches on every rank.

    With worker processes, the randomness of a map-style dataset is seeded for every batch by `seed`
    and the batch's number in the whole stream. Without them, the dataset draws from the training
    process's global generators. That is exact too, as checkpoints hold these and nothing is read
    ahead. The state has those that a dataset keeps for itself, too. Worker processes start with
    them again, with a warning. Making or starting a stream draws nothing from the global
    generators.

    `limit` ends each epoch of data without a length after that many batches of a rank. The loader
    is then started again.

    Raises TrialError if the data is empty, or if it ends and cannot be read again.
    """

    def __init__(
        self, loader: Any, *, seed: int, rank: int, size: int, limit: int | None = None
    ) -> None:
        self._source = _source(loader, seed, rank, size)
        if limit is not None and self._source.batches_per_epoch is None:
            self._source.limit = limit * self._source.step
        self._size = size
        self._shards = size if self._source.sharded else None

    def batches(self, done: int, per_epoch: int | None = None) -> Iterator[Any]:
        """Return the stream after the first `done` batches of this rank.

        A stream that is open is closed.

        With `per_epoch`, an epoch of this rank has that many batches. Data and indices of an epoch
        are then read only when its first batch is requested. Worker processes that are not
        persistent are started again for each epoch.
        """
        return (
            self._source.batches(done)
            if per_epoch is None
            else self._source.epochs(done, per_epoch)
        )

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches in an epoch on the chief, which all ranks use. None if the data has no length."""
        return self._source.batches_per_epoch

    @property
    def exact(self) -> bool:
        """Whether a resumed run reads the same data as an uninterrupted run."""
        return self.warning is None

    @property
    def warning(self) -> str | None:
        """A sentence for the user if resuming is not exact, or if it reads data and drops it."""
        return self._source.warning

    @property
    def advice(self) -> str | None:
        """A sentence for the user if every rank reads all of the data and the data does not say
        whether it is a share.
        """
        return self._source.advice

    def state(self, done: int) -> dict[str, Any] | None:
        """Return what a checkpoint must hold of this rank's data after `done` batches.

        None if `done` is enough.
        """
        state = self._source.state(done)
        if state is not None and self._size > 1:
            state["size"] = self._size
        return state if self._shards is None else {"shards": self._shards, "state": state}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restore a state of this rank, or of the chief if this rank has none.

        Call this before `batches`.

        A state of another kind of loader, or of data that was sharded in another way, is ignored
        with a warning.
        """
        shards = (state or {}).get("shards")
        if state is not None and shards != self._shards:
            self._source.warning = (
                f"the training data was {_dealt(shards)} when the checkpoint was written and is"
                f" {_dealt(self._shards)} now, so that some records may be repeated and some missed"
            )
            return
        if state is not None and shards is not None:
            state = state["state"]
        if state is None:
            return
        size = state.get("size", 1)
        if size != self._size and self._source.kind != "index":
            self._source.warning = (
                f"the place in the training data was kept by {size} ranks, whose batches were of"
                f" another size than those of {self._size}: what lies before it is read again and"
                " dropped"
            )
        elif state.get("kind") == self._source.kind:
            self._source.restore(state)
        else:
            self._source.warning = (
                "the checkpoint was written with another kind of training data loader, so that some"
                " records may be repeated and some missed; resume with the loader that it was"
                " written with"
            )

    def close(self) -> None:
        """End worker processes, threads and open iterators."""
        self._source.close()


def epoch_batches(loader: Any, size: int) -> int | None:
    """Return the training batches in an epoch of each of `size` ranks, without a stream.

    None if the data has no length.
    """
    if isinstance(loader, DataLoader):
        loader = loader.get_data_loader()
    return rank_batches(loader, 1 if is_sharded(loader) else size)


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

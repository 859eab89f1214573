"""The training batches, as Lightning asks for them: epoch by epoch, and from any batch on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lightning.pytorch.utilities import CombinedLoader
from torch.utils._pytree import tree_flatten, tree_unflatten

from det_core import Communicator, TrialError
from det_torch.data import TrainingStream

from .internals import mode_of
from .position import Position

_MODES = ("max_size_cycle", "min_size", "max_size")


class Feed:
    """One rank's training batches out of a loader, or out of a list or dict of loaders that are read side by side.

    Between two batches Lightning calls nothing but its data, so that this is where det is told that a batch is over:
    `between` is called before each batch is read, and ends the epoch when it returns True.

    Where every loader has a length, an epoch begins with the loaders' own, and a loader that is shorter than the others goes
    on with its next epoch. Otherwise an epoch ends where all loaders (`min_size`: any) have ended once; then the state of each
    is noted behind each batch, as Lightning reads one batch ahead to know the last.
    """

    def __init__(
        self,
        loaders: Any,
        distributed: Communicator,
        between: Callable[[], bool],
        *,
        seed: int,
        limit: int | float = 1.0,
        observe: Callable[[int, Any], None] | None = None,
    ) -> None:
        mode = "max_size_cycle"
        if isinstance(loaders, CombinedLoader):
            mode, loaders = mode_of(loaders), loaders.iterables
        if mode not in _MODES:
            raise TrialError(
                f"the training data is a CombinedLoader of mode {mode!r}; take one of {', '.join(map(repr, _MODES))}"
            )
        leaves, self._spec = tree_flatten(loaders)
        if not leaves or any(not hasattr(leaf, "__iter__") and not hasattr(leaf, "__getitem__") for leaf in leaves):
            raise TrialError(
                f"the training data is {type(loaders).__name__}; return a data loader, or a list or dict of them"
            )
        self.loaders = loaders
        self._distributed, self._between, self._mode = distributed, between, mode
        self._observe = observe
        rank, size = distributed.rank, distributed.size
        self._streams = [TrainingStream(leaf, seed=seed, rank=rank, size=size) for leaf in leaves]
        self._lengths: list[int | None] = distributed.broadcast([each.batches_per_epoch for each in self._streams])
        self._whole = self._whole_length()
        self.batches_per_epoch = _limited(self._whole, limit)
        self._iterators: list[Iterator[Any]] | None = None
        self._at = Position()
        self._given = 0  # batches of this epoch
        self._next = 0  # the number of the batch that the streams give next
        self._states: dict[int, list[Any]] = {}
        self._began: list[int] | None = None  # each loader's epoch at the first batch of ours
        self._held: Any = None
        self._over = False

    # What Lightning sees

    def __len__(self) -> int:
        """Return the batches in an epoch. Raises TypeError where that is unknown."""
        if self.batches_per_epoch is None:
            raise TypeError("the training data has no length")
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._between() or self._over or self._given == self.batches_per_epoch:
            raise StopIteration
        batch = self._pull()
        if self._observe is not None:
            self._observe(self._at.done - self._at.batch + self._given, batch)
        self._given += 1
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loaders":
            raise AttributeError(name)
        return getattr(self.loaders, name)  # such as `dataset` and `batch_size`

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the position is det's. Having this, Lightning does not warn that data cannot be resumed."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take no notice."""

    # What det asks and says

    @property
    def batch_size(self) -> int | None:
        """Records in one batch of this rank, where one loader says so."""
        size = getattr(self.loaders, "batch_size", None)
        return (
            size if isinstance(size, int) else getattr(getattr(self.loaders, "batch_sampler", None), "batch_size", None)
        )

    @property
    def advice(self) -> list[str]:
        """What is to be said of data that every rank reads whole."""
        return [stream.advice for stream in self._streams if stream.advice]

    def state(self, at: Position) -> dict[str, Any]:
        """Return what a checkpoint must hold of the data at a position."""
        if self._whole is None:
            states = self._states.get(at.done) or [s.state(at.done) for s in self._streams]
            return {"streams": states, "began": self._began}
        return {"streams": [s.state(self._index(i, at)) for i, s in enumerate(self._streams)], "began": None}

    def restore(self, at: Position, state: Mapping[str, Any] | None) -> None:
        """Go on at a position, before any batch is asked for."""
        self._at, self._given, self._next = at, at.batch, at.done
        self._over = at.ended
        saved: Sequence[Any] = (state or {}).get("streams") or []
        self._began = (state or {}).get("began")
        for stream, own in zip(self._streams, saved, strict=False):
            stream.restore(own)

    def begin_epoch(self, at: Position) -> None:
        """Begin the epoch of a position; the data is read from there on, wherever it was left."""
        follows = self._whole is None or self._given == self._whole
        self._at, self._given, self._over, self._began = at, 0, False, None
        if not follows:
            self._iterators = None

    def close(self) -> None:
        """End what reads ahead."""
        for stream in self._streams:
            stream.close()
        self._iterators = None

    # Reading

    def _pull(self) -> Any:
        if self._iterators is None:
            self._iterators = [s.batches(self._index(i, self._at)) for i, s in enumerate(self._streams)]
            for warning in (stream.warning for stream in self._streams):
                if warning:
                    warnings.warn(warning, stacklevel=1)
        batches = self._pull_unsized() if self._whole is None else self._pull_sized()
        return tree_unflatten(batches, self._spec)

    def _pull_sized(self) -> list[Any]:
        assert self._iterators is not None
        if self._mode != "max_size":
            return [next(iterator) for iterator in self._iterators]
        pairs = zip(self._iterators, self._lengths, strict=True)
        return [next(iterator) if self._given < (length or 0) else None for iterator, length in pairs]

    def _pull_unsized(self) -> list[Any]:
        held, self._held = self._held, None
        batches, epochs = held or self._read()
        if self._began is None:
            self._began = epochs
        elif self._has_ended(epochs):
            self._held, self._over = (batches, epochs), True
            raise StopIteration
        return list(batches)

    def _read(self) -> tuple[list[Any], list[int]]:
        assert self._iterators is not None
        batches = [next(iterator) for iterator in self._iterators]
        self._next += 1
        states = [stream.state(self._next) for stream in self._streams]
        self._states[self._next] = states
        self._states.pop(self._next - 4, None)
        epochs = [
            _plain(state)["epoch"] if length is None and state else (self._next - 1) // (length or 1)
            for state, length in zip(states, self._lengths, strict=True)
        ]
        return batches, epochs

    def _has_ended(self, epochs: list[int]) -> bool:
        assert self._began is not None
        over = [now > began for now, began in zip(epochs, self._began, strict=True)]
        return self._distributed.agree(any(over) if self._mode == "min_size" else all(over))

    def _index(self, stream: int, at: Position) -> int:
        """Return how many batches of a stream lie before a position."""
        length = self._lengths[stream]
        if self._whole is None:
            return at.done
        if self._mode == "max_size" and length is not None:
            return at.epoch * length + min(at.batch, length)
        return at.epoch * self._whole + at.batch

    def _whole_length(self) -> int | None:
        known = [length for length in self._lengths if length is not None]
        if len(known) < len(self._lengths):
            if self._mode == "max_size":
                raise TrialError("the training data has a loader without a length; take the mode 'max_size_cycle'")
            return None
        return min(known) if self._mode == "min_size" else max(known)


def _plain(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a stream's data, which is within that of data that shards itself."""
    return state["state"] if "shards" in state else state


def _limited(length: int | None, limit: int | float) -> int | None:
    """Return the batches of an epoch under Lightning's `limit_train_batches`: a number of them, or a share."""
    if isinstance(limit, int):
        return limit if length is None else min(length, limit)
    if length is None or limit == 1.0:
        return length
    return max(1, int(length * limit))

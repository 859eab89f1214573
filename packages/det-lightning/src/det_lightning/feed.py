"""The training batches in the form that Lightning reads: epoch by epoch, from any batch on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lightning.pytorch.utilities import CombinedLoader
from torch.utils._pytree import tree_flatten, tree_unflatten

from det_core import Communicator, TrialError
from det_torch.data import TrainingStream

from .internals import limited, mode_of
from .position import Position

_MODES = ("max_size_cycle", "min_size", "max_size")


class Feed:
    """One rank's training batches, from a loader, or from a list or dict of loaders that are read
    in parallel.

    Between two batches Lightning calls nothing but its data. So the feed is where det learns that a
    batch is over. It calls `between` before each batch is read, and ends the epoch if that returns
    True.

    If every loader has a length, each of them starts with the epoch. A loader that is shorter than
    the others starts again within it. Otherwise an epoch ends where all loaders (with `min_size`:
    any loader) have ended once. The state of each is then stored after each batch, as Lightning
    reads one batch ahead to recognize the last.
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
        hidden: tuple[str, ...] = (),
    ) -> None:
        """`hidden` names attributes of the loaders that Lightning must not find."""
        mode = "max_size_cycle"
        if isinstance(loaders, CombinedLoader):
            mode, loaders = mode_of(loaders), loaders.iterables
        if mode not in _MODES:
            raise TrialError(
                f"the training data is a CombinedLoader of mode {mode!r}; take one of"
                f" {', '.join(map(repr, _MODES))}"
            )
        leaves, self._spec = tree_flatten(loaders)
        if not leaves or any(
            not hasattr(leaf, "__iter__") and not hasattr(leaf, "__getitem__") for leaf in leaves
        ):
            raise TrialError(
                f"the training data is {type(loaders).__name__}; return a data loader, or a list or"
                " dict of them"
            )
        # Nearly all trainings have one loader and need no tree.
        self._is_one = leaves[0] is loaders
        self.loaders, self._hidden = loaders, hidden
        self._distributed, self._between, self._mode = distributed, between, mode
        self._observe = observe
        rank, size = distributed.rank, distributed.size
        most = limit if isinstance(limit, int) else None
        self._streams = [
            TrainingStream(leaf, seed=seed, rank=rank, size=size, limit=most) for leaf in leaves
        ]
        self._lengths: list[int | None] = distributed.broadcast(
            [each.batches_per_epoch for each in self._streams]
        )
        self._whole = self._whole_length()
        self.batches_per_epoch = limited(self._whole, limit)
        self._iterators: list[Iterator[Any]] | None = None
        self._at = Position()
        # The number of batches of this epoch that were given.
        self._given = 0
        # The number of the batch that the streams give next.
        self._next = 0
        self._states: dict[int, list[Any]] = {}
        # The epoch of each loader at the first batch of this epoch.
        self._began: list[int] | None = None
        self._held: Any = None
        # The batch that was given last.
        self._ahead: Any = None
        # The batch that is given again.
        self._again: Any = None
        self._over = False

    # Interface for Lightning

    def __len__(self) -> int:
        """Return the number of batches of the whole data, which Lightning limits itself.

        Raises TypeError if it is unknown.
        """
        if self._whole is None:
            raise TypeError("the training data has no length")
        return self._whole

    def __iter__(self) -> Iterator[Any]:
        """Start with the first batch that is not trained.

        A batch that was read ahead is returned again.
        """
        if self._given > self._at.batch:
            self._again, self._given = self._ahead, self._given - 1
        return self

    def __next__(self) -> Any:
        if self._between() or self._over or self._given == self.batches_per_epoch:
            raise StopIteration
        batch, self._again = self._again, None
        if batch is None:
            batch = self._pull()
            if self._observe is not None:
                self._observe(self._at.done - self._at.batch + self._given, batch)
        # Lightning reads one batch ahead.
        if self._whole is None:
            self._ahead = batch
        self._given += 1
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loaders" or name in self._hidden:
            raise AttributeError(name)
        # Lightning reads attributes such as `dataset` and `batch_size`.
        return getattr(self.loaders, name)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing, as det saves the position.

        Without this method, Lightning warns that the data cannot be resumed.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    # Interface for det

    @property
    def batch_size(self) -> int | None:
        """Records in one batch of this rank, if there is one loader and it has this size."""
        size = getattr(self.loaders, "batch_size", None)
        return (
            size
            if isinstance(size, int)
            else getattr(getattr(self.loaders, "batch_sampler", None), "batch_size", None)
        )

    @property
    def advice(self) -> list[str]:
        """Advice on data that every rank reads whole."""
        return [stream.advice for stream in self._streams if stream.advice]

    def state(self, at: Position) -> dict[str, Any]:
        """Return what a checkpoint must hold of the data at a position."""
        if self._whole is None:
            states = self._states.get(at.done) or [s.state(at.done) for s in self._streams]
            return {"streams": states, "began": self._began}
        return {
            "streams": [s.state(self._index(i, at)) for i, s in enumerate(self._streams)],
            "began": None,
        }

    def restore(self, at: Position, state: Mapping[str, Any] | None) -> None:
        """Continue at a position. Call this before any batch is read."""
        self._at, self._given, self._next = at, at.batch, at.done
        self._over = at.ended
        saved: Sequence[Any] = (state or {}).get("streams") or []
        self._began = (state or {}).get("began")
        for stream, own in zip(self._streams, saved, strict=False):
            stream.restore(own)

    def begin_epoch(self, at: Position) -> None:
        """Start the epoch of a position. The data is read from there, wherever reading stopped."""
        follows = self._whole is None or (self._given == self._whole and self._end_together())
        self._ahead = self._again = None
        self._at, self._given, self._over, self._began = at, 0, False, None
        if not follows:
            self._iterators = None

    def close(self) -> None:
        """Close all streams that read ahead."""
        for stream in self._streams:
            stream.close()
        self._iterators = None

    # Reading

    def _pull(self) -> Any:
        if self._iterators is None:
            # With their lengths, streams start workers with each epoch, as Lightning does. So
            # workers see what hooks have changed.
            lengths = self._lengths if self._whole is not None else [None] * len(self._lengths)
            self._iterators = [
                stream.batches(self._index(index, self._at), length)
                for index, (stream, length) in enumerate(zip(self._streams, lengths, strict=True))
            ]
            for warning in (stream.warning for stream in self._streams):
                if warning:
                    warnings.warn(warning, stacklevel=1)
        batches = self._pull_unsized() if self._whole is None else self._pull_sized()
        return batches[0] if self._is_one else tree_unflatten(batches, self._spec)

    def _pull_sized(self) -> list[Any]:
        assert self._iterators is not None
        if self._mode != "max_size":
            return [next(iterator) for iterator in self._iterators]
        pairs = zip(self._iterators, self._lengths, strict=True)
        return [
            next(iterator) if self._given < (length or 0) else None for iterator, length in pairs
        ]

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
            (
                _plain(state)["epoch"]
                if length is None and state
                else (self._next - 1) // (length or 1)
            )
            for state, length in zip(states, self._lengths, strict=True)
        ]
        return batches, epochs

    def _has_ended(self, epochs: list[int]) -> bool:
        assert self._began is not None
        over = [now > began for now, began in zip(epochs, self._began, strict=True)]
        return self._distributed.agree(any(over) if self._mode == "min_size" else all(over))

    def _index(self, stream: int, at: Position) -> int:
        """Return the number of batches of a stream that lie before a position."""
        length = self._lengths[stream]
        if self._whole is None:
            return at.done
        if self._mode == "max_size" and length is not None:
            return at.epoch * length + min(at.batch, length)
        assert length is not None
        return at.epoch * -(-self._whole // length) * length + at.batch

    def _end_together(self) -> bool:
        """Return whether the next epoch starts where the streams are now.

        This holds if each loader ends with the epoch or was read as often as it is long.
        """
        return self._mode == "max_size" or all(
            length and self._whole is not None and self._whole % length == 0
            for length in self._lengths
        )

    def _whole_length(self) -> int | None:
        known = [length for length in self._lengths if length is not None]
        if len(known) < len(self._lengths):
            if self._mode == "max_size":
                raise TrialError(
                    "the training data has a loader without a length; take the mode"
                    " 'max_size_cycle'"
                )
            return None
        return min(known) if self._mode == "min_size" else max(known)


def _plain(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a stream's data. Data that shards itself stores it one level deeper."""
    return state["state"] if "shards" in state else state

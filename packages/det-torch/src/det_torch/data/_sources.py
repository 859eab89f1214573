"""Where training batches come from: one class for each way to reach a position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, ClassVar, final

from torch.utils.data import DataLoader as TorchDataLoader

from det_core.errors import TrialError

from ._order import SamplerOrder, empty
from ._sharding import is_sharded, is_skipped
from ._torch import Indices, length_of, order_of, reading, shut_down


class Source(ABC):
    """Training batches of one rank. `step` is how many batches of the stream lie between two of this rank."""

    kind: ClassVar[str] = "index"  # of its state
    warning: str | None = None
    advice: str | None = None

    def __init__(self, loader: Any, rank: int, size: int) -> None:
        self.loader = loader
        self.sharded = is_sharded(loader)
        self.first, self.step = (0, 1) if self.sharded else (rank, size)

    @property
    def batches_per_epoch(self) -> int | None:
        length = length_of(self.loader)
        return None if length is None else -(-length // self.step)

    @abstractmethod
    def batches(self, done: int) -> Iterator[Any]:
        """Return the stream behind the first `done` batches of this rank, instead of one that is open."""

    def state(self, done: int) -> dict[str, Any] | None:
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""

    def close(self) -> None:
        """End what is open."""


@final
class IndexedSource(Source):
    """A map-style dataset: the position is found among indices, and no data is read to get there."""

    def __init__(self, loader: TorchDataLoader[Any], seed: int, rank: int, size: int) -> None:
        super().__init__(loader, rank, size)
        self._seed, self._rank, self._size = seed, rank, size
        self._skipped = is_skipped(loader)
        self._order = order_of(loader, seed)
        self._expected: int | None = None
        self._iterator: Any = None
        if not getattr(loader, "in_order", True):
            self.warning = "the training data loader has in_order=False: its batches come in another order in every run"

    def batches(self, done: int) -> Iterator[Any]:
        self.close()
        indices = self._order.endless(0 if self._skipped else done * self.step + self.first, self.step)
        indices = chain([next(indices)], indices)  # a sampler of the user's is replayed here
        self._compare()
        # batches are numbered over all ranks, so that no two draw the same
        numbers = (done * self._size + self._rank, self._size) if self.loader.num_workers else None
        self._iterator = iter(reading(self.loader, Indices(lambda: indices, numbers), self._seed))
        return self._iterator  # type: ignore[no-any-return]

    def state(self, done: int) -> dict[str, Any] | None:
        if not isinstance(self._order, SamplerOrder) or self._order.mark is None or self._skipped:
            return None
        return {"kind": self.kind, "mark": self._order.mark}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._expected = state.get("mark")

    def _compare(self) -> None:
        if isinstance(self._order, SamplerOrder) and self._expected not in (None, self._order.mark):
            self.warning = (
                "the sampler of the training data began with other indices than in the run before, so that some records are "
                "repeated and some are missed; seed the generator that it keeps"
            )

    def close(self) -> None:
        if self._iterator is not None:
            shut_down(self._iterator)
            self._iterator = None


@final
class SequenceSource(Source):
    """A list of batches."""

    def __init__(self, loader: Sequence[Any], rank: int, size: int) -> None:
        super().__init__(loader, rank, size)
        if not len(loader):
            raise TrialError(empty(f"it is a {type(loader).__name__} of length 0"))

    def batches(self, done: int) -> Iterator[Any]:
        length = len(self.loader)
        return (self.loader[at % length] for at in count(done * self.step + self.first, self.step))

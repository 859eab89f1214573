"""A source for loaders that know their own position, such as torchdata's StatefulDataLoader.

A checkpoint holds their state.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, final

import torch

from det_core.errors import TrialError

from ._libraries import caveat
from ._order import announce, empty
from ._rng import PrivateRng, derive
from ._sharding import read_by_all, samplers
from ._sources import Source
from ._torch import again, is_plain, shut_down


def holder_of(loader: Any) -> Any:
    """Return the object that holds the position of a loader, or None.

    This is the loader itself, or its iterable dataset if no worker process has a copy of it.
    """
    if _has_state(loader):
        return loader
    if is_plain(loader) and not loader.num_workers and _has_state(loader.dataset):
        return loader.dataset
    return None


def _has_state(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None)
    )


@final
class StatefulSource(Source):
    """A loader with `state_dict` and `load_state_dict`. It reaches a position without reading data.

    A rank that has only the chief's state reads from there to its own next batch, which is at most
    `2 * size` batches.
    """

    kind = "stateful"

    def __init__(self, loader: Any, holder: Any, seed: int, rank: int, size: int) -> None:
        super().__init__(loader, rank, size)
        self.advice = read_by_all(loader, size, "training")
        self.warning = caveat(holder)
        self._holder = holder
        self._seed = seed
        self._epoch = self._pulled = self._epoch_at = 0
        self._restored: Mapping[str, Any] | None = None
        # Whether the epoch is read from its start.
        self._fresh = True
        self._began: list[torch.Tensor] = []
        self._inner: Any = None
        self._stream: Generator[Any] | None = None

    def batches(self, done: int) -> Iterator[Any]:
        if self._restored is None and self._stream is not None:
            self._restored = self.state(done)
        self.close()
        if self._restored is not None:
            self._epoch, self._pulled = self._restored["epoch"], self._restored["pulled"]
            self._fresh = self._restored["ended"]
            self._epoch_at = self._restored.get("began", self._pulled)
            self._holder.load_state_dict(self._restored["state"])
            if not self._fresh and self._pulled - self._epoch_at == self.limit:
                # The limit ended this epoch here. The next one starts after it.
                self._open()
                self._epoch, self._fresh = self._epoch + 1, True
        target = done * self.step + self.first
        if target < self._pulled:
            raise TrialError(
                f"the training data loader has given {self._pulled} batches and cannot go back to"
                f" batch {target}; resume from a checkpoint that holds its state"
            )
        if done and self._restored is None:
            self.warning = self.warning or (
                "the checkpoint holds no state of the training data loader, so that the first "
                f"{target} batches are read again and dropped"
            )
        self._stream = self._generate(target)
        return self._stream

    def _generate(self, target: int) -> Generator[Any]:
        while True:
            began = self._pulled
            if self._fresh:
                self._epoch_at = began
            left = None if self.limit is None else self._epoch_at + self.limit - began
            for batch in islice(self._open(), left):
                self._restored = None
                at = self._pulled
                self._pulled = at + 1
                if at == target:
                    target += self.step
                    yield batch
            if self._fresh and self._pulled == began:
                raise TrialError(
                    empty(
                        f"this {type(self.loader).__name__} yields nothing in epoch {self._epoch}"
                    )
                )
            self._epoch, self._fresh = self._epoch + 1, True

    def _open(self) -> Iterator[Any]:
        began, drawn = (self._restored or {}).get("generators", ([], []))
        with PrivateRng(derive(self._seed, self._epoch)):
            self._wind(drawn if self._fresh else began)
            self._began = self._drawn()
            self._inner = iter(self._items())
            if not self._fresh:
                # Once more, as starting the loader may have drawn another number of values.
                self._wind(drawn)
            first = list(islice(self._inner, 1)) if self._fresh else []
        return chain(first, self._inner)

    def _wind(self, states: Sequence[torch.Tensor]) -> None:
        """Set the states of the loader's own generators, which determine its next epochs."""
        for generator, state in zip(self._generators(), states, strict=False):
            generator.set_state(state)

    def _drawn(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators()]

    def _generators(self) -> list[torch.Generator]:
        found = [
            getattr(thing, "generator", None) for thing in (self.loader, *samplers(self.loader))
        ]
        return list(
            {id(each): each for each in found if isinstance(each, torch.Generator)}.values()
        )

    def _items(self) -> Iterable[Any]:
        announce(
            self._epoch, self.loader, getattr(self.loader, "dataset", None), *samplers(self.loader)
        )
        if self._holder is self.loader:
            return self.loader  # type: ignore[no-any-return]
        return again(self.loader, derive(self._seed, self._epoch))

    def state(self, done: int) -> dict[str, Any] | None:
        # Nothing has been read since the last restore.
        if self._restored is not None or self._inner is None:
            return None if self._restored is None else dict(self._restored)
        # A short batch at the end of the data has already started the next epoch of the dataset.
        ended = bool(getattr(getattr(self._inner, "_dataset_fetcher", None), "ended", False))
        epoch = self._epoch + ended
        state = self._holder.state_dict()
        where = {
            "kind": self.kind,
            "epoch": epoch,
            "pulled": self._pulled,
            "ended": ended,
            "state": state,
        }
        where["began"] = self._pulled if ended else self._epoch_at
        return where | ({"generators": [self._began, self._drawn()]} if self._began else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        self._restored = state

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            shut_down(self._inner, self.loader)
            self._stream = self._inner = None

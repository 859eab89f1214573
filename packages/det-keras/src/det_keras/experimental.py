"""Caches of datasets on disk, for `context.experimental`."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from det_core import TrialContext, TrialError
from det_core.data import DatasetCache

from .data import CachedDataset, Share
from .sources import Wrapped

Make = Callable[..., Any]


class DatasetCaches(ABC):
    """The decorators by which trials of TensorFlow's frameworks cache their datasets on disk."""

    def __init__(self, context: TrialContext) -> None:
        self._context = context

    def cache_train_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
        *,
        directory: str | Path | None = None,
    ) -> Callable[[Make], Make]:
        """Decorate a function that returns a `tf.data.Dataset` of single records.

        The records are written to disk once. The decorated function returns an endless dataset that
        begins where training does and holds this rank's share. Batch it by
        `context.get_per_slot_batch_size()`, and do not shuffle, repeat or wrap it.

        With `shuffle`, each epoch has a different order, unless `skip_shuffle_at_epoch_end` is set.
        All trials on the host share the cache. It is below `directory`, else below
        `data_layer.host_storage_path`, else in `~/.cache/det/datasets`.
        """

        def endless(records: CachedDataset) -> Any:
            return records.endless(
                self._share(), shuffle=shuffle, reshuffle=not skip_shuffle_at_epoch_end
            )

        return self._decorator(
            "cache_train_dataset", dataset_id, dataset_version, directory, endless
        )

    def cache_validation_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        *,
        directory: str | Path | None = None,
    ) -> Callable[[Make], Make]:
        """Decorate a function as `cache_train_dataset` does, for validation.

        The dataset holds each of this rank's records once. `shuffle` has no effect, because a
        validation uses all records.
        """

        def whole(records: CachedDataset) -> Any:
            return records.whole(self._context.distributed.rank, self._context.distributed.size)

        return self._decorator(
            "cache_validation_dataset", dataset_id, dataset_version, directory, whole
        )

    @abstractmethod
    def _claim(self, what: str, make: Make) -> None:
        """Record a call of a decorated function.

        Raises TrialError for a second function of the same kind.
        """

    @abstractmethod
    def _opened(self, open_records: Callable[[], CachedDataset]) -> CachedDataset:
        """Return the records, opened where TensorFlow executes eagerly."""

    @abstractmethod
    def _known(self, dataset: Any) -> Any:
        """Return a dataset, and remember that it needs no wrapping."""

    def _decorator(
        self,
        what: str,
        name: str,
        version: str,
        directory: str | Path | None,
        read: Callable[[CachedDataset], Any],
    ) -> Callable[[Make], Make]:
        cache = DatasetCache.of(self._context.run.config.data_layer, directory)

        def decorate(make: Make) -> Make:
            @functools.wraps(make)
            def cached(*args: Any, **kwargs: Any) -> Any:
                self._claim(what, make)
                records = self._opened(
                    lambda: CachedDataset.open(cache, name, version, lambda: make(*args, **kwargs))
                )
                return self._known(read(records))

            return cached

        return decorate

    def _share(self) -> Share:
        context = self._context
        return Share(
            seed=context.run.seed,
            rank=context.distributed.rank,
            size=context.distributed.size,
            batch=context.get_per_slot_batch_size(),
            first=context.run.first_batch,
        )


class Experimental(DatasetCaches):
    """`context.experimental`: features that may change."""

    def __init__(self, context: TrialContext, wrapped: Wrapped) -> None:
        super().__init__(context)
        self._wrapped = wrapped
        self._used: set[str] = set()

    def _claim(self, what: str, make: Make) -> None:
        if what in self._used:
            raise TrialError(f"{what} is used twice; a trial has one dataset of each kind")
        self._used.add(what)

    def _opened(self, open_records: Callable[[], CachedDataset]) -> CachedDataset:
        return open_records()

    def _known(self, dataset: Any) -> Any:
        self._wrapped.add(dataset)
        return dataset

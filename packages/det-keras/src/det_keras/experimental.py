"""Datasets that are kept on disk, for `context.experimental`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_core import TrialError

from .data import CachedDataset, Share

if TYPE_CHECKING:
    from .context import TFKerasTrialContext

_KEYS = ("host_storage_path", "local_cache_host_path")
Make = Callable[..., Any]


class Experimental:
    """`context.experimental`: what may change."""

    def __init__(self, context: TFKerasTrialContext) -> None:
        self._context = context
        self._used: set[str] = set()

    def cache_train_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
        *,
        directory: str | Path | None = None,
    ) -> Callable[[Make], Make]:
        """Decorate a function that returns a `tf.data.Dataset` of single records: they are written to disk once.

        What the function then returns is endless, begins where training does, and is this rank's share: batch it by
        `context.get_per_slot_batch_size()`, and do not shuffle, repeat or wrap it. With `shuffle`, the order is drawn anew in
        each epoch, unless `skip_shuffle_at_epoch_end`. All trials on the machine share what is written, below `directory`, else
        below `data_layer.host_storage_path`, else in `~/.cache/det/datasets`.
        """

        def decorate(make: Make) -> Make:
            @functools.wraps(make)
            def cached(*args: Any, **kwargs: Any) -> Any:
                self._once("cache_train_dataset")
                records = self._open(directory, dataset_id, dataset_version, lambda: make(*args, **kwargs))
                dataset = records.endless(self._share(), shuffle=shuffle, reshuffle=not skip_shuffle_at_epoch_end)
                self._context.datasets.add(dataset)
                return dataset

            return cached

        return decorate

    def cache_validation_dataset(
        self, dataset_id: str, dataset_version: str, shuffle: bool = False, *, directory: str | Path | None = None
    ) -> Callable[[Make], Make]:
        """Decorate a function as `cache_train_dataset` does, for validation: each of this rank's records comes once.

        `shuffle` is taken and changes nothing: a validation is of all records.
        """

        def decorate(make: Make) -> Make:
            @functools.wraps(make)
            def cached(*args: Any, **kwargs: Any) -> Any:
                self._once("cache_validation_dataset")
                records = self._open(directory, dataset_id, dataset_version, lambda: make(*args, **kwargs))
                distributed = self._context.distributed
                dataset = records.whole(distributed.rank, distributed.size)
                self._context.datasets.add(dataset)
                return dataset

            return cached

        return decorate

    def _once(self, what: str) -> None:
        if what in self._used:
            raise TrialError(f"{what} is used twice; a trial has one dataset of each kind")
        self._used.add(what)

    def _open(self, directory: str | Path | None, name: str, version: str, make: Callable[[], Any]) -> CachedDataset:
        layer = self._context.run.config.data_layer or {}
        configured = next((layer[key] for key in _KEYS if isinstance(layer.get(key), str)), None)
        root = Path(directory or configured or Path.home() / ".cache" / "det" / "datasets")
        return CachedDataset.open(root, name, version, make)

    def _share(self) -> Share:
        context = self._context
        return Share(
            seed=context.run.seed,
            rank=context.distributed.rank,
            size=context.distributed.size,
            batch=context.get_per_slot_batch_size(),
            first=context.run.first_batch,
        )

"""Datasets that are kept on disk, for `context.experimental`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from det_core import TrialError

from .inputs import Begun, mark

if TYPE_CHECKING:
    from .context import EstimatorTrialContext

_KEYS = ("host_storage_path", "local_cache_host_path")
Make = Callable[..., Any]


class Experimental:
    """`context.experimental`: what may change. The caches are those of det-keras, and shared with its trials."""

    def __init__(self, context: EstimatorTrialContext) -> None:
        self._context = context
        self._used: dict[str, Any] = {}

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

        What the function then returns is endless and this rank's share, and begins where training does, so that a resumed
        run reads nothing twice: batch it by `context.get_per_slot_batch_size()`, and do not shuffle, repeat or wrap it. With
        `shuffle`, the order is drawn anew in each epoch, unless `skip_shuffle_at_epoch_end`. All trials on the machine share what
        is written, below `directory`, else below `data_layer.host_storage_path`, else in `~/.cache/det/datasets`.
        """

        def train(records: Any) -> Any:
            context = self._context
            from det_keras.data import Share

            size, ranks, first = context.get_per_slot_batch_size(), context.distributed, context.run.first_batch
            share = Share(seed=context.run.seed, rank=ranks.rank, size=ranks.size, batch=size, first=first)
            dataset = records.endless(share, shuffle=shuffle, reshuffle=not skip_shuffle_at_epoch_end)
            return mark(dataset, Begun(first, len(records) // (size * ranks.size)))

        return self._decorator("cache_train_dataset", dataset_id, dataset_version, directory, train)

    def cache_validation_dataset(
        self, dataset_id: str, dataset_version: str, shuffle: bool = False, *, directory: str | Path | None = None
    ) -> Callable[[Make], Make]:
        """Decorate a function as `cache_train_dataset` does, for validation: each of this rank's records comes once.

        `shuffle` is taken and changes nothing: a validation is of all records.
        """

        def validate(records: Any) -> Any:
            return mark(records.whole(self._context.distributed.rank, self._context.distributed.size))

        return self._decorator("cache_validation_dataset", dataset_id, dataset_version, directory, validate)

    def _decorator(
        self, what: str, name: str, version: str, directory: str | Path | None, use: Callable[[Any], Any]
    ) -> Callable[[Make], Make]:
        def decorate(make: Make) -> Make:
            @functools.wraps(make)
            def cached(*args: Any, **kwargs: Any) -> Any:
                if self._used.setdefault(what, make.__code__) is not make.__code__:
                    raise TrialError(f"{what} is used twice; a trial has one dataset of each kind")
                self._context.wrapped_datasets += 1
                return use(self._open(directory, name, version, lambda: make(*args, **kwargs)))

            return cached

        return decorate

    def _open(self, directory: str | Path | None, name: str, version: str, make: Callable[[], Any]) -> Any:
        from det_keras.data import CachedDataset

        layer = self._context.run.config.data_layer or {}
        configured = next((layer[key] for key in _KEYS if isinstance(layer.get(key), str)), None)
        root = Path(directory or configured or Path.home() / ".cache" / "det" / "datasets")

        def opened() -> Any:
            if not tf.executing_eagerly():
                raise TrialError(
                    "cached datasets are read and written eagerly, which tf.compat.v1.disable_v2_behavior() or "
                    "disable_eager_execution() prevents; leave that call out, or wrap_dataset instead"
                )
            return CachedDataset.open(root, name, version, make)

        with ThreadPoolExecutor(1) as pool:  # a thread of its own is in no graph
            return pool.submit(opened).result()

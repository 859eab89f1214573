"""Datasets on disk: every record by its number, so that shuffling and position survive a restart."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import tensorflow as tf

from det_core import TrialError

from ._feed import ENDLESS

_DATA, _INDEX, _ABOUT = "records.bin", "index.npy", "about.json"
_BLOCK = 256  # records that are read in one go
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_BATCHES = "_det_batches_per_epoch"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which records one rank reads: of every `batch` times `size`, from batch `first` on, `batch` for `rank`."""

    seed: int
    rank: int
    size: int
    batch: int
    first: int


class CachedDataset:
    """The records of a dataset in a directory: their tensors one behind the other, and an index of where each begins.

    The directory appears when it is complete. Of two writers the second waits for the first, in whichever process it is.
    """

    def __init__(self, directory: Path, spec: Any) -> None:
        self._directory, self._spec = directory, spec
        self._index = np.load(directory / _INDEX, mmap_mode="r", allow_pickle=False)

    @classmethod
    def open(cls, root: Path, name: str, version: str, make: Callable[[], Any]) -> CachedDataset:
        """Return the cache of a name and a version; where there is none, write what `make()` gives.

        Raises TrialError where it holds records of another kind.
        """
        for what, text in (("dataset_id", name), ("dataset_version", version)):
            if not isinstance(text, str) or not _NAME.fullmatch(text):
                raise TrialError(f"{what} is {text!r}; give letters, digits, '_', '-' and '.'")
        directory = root / name / version
        dataset = make()
        if not isinstance(dataset, tf.data.Dataset):
            raise TrialError(
                f"the function that makes {name!r} returned {type(dataset).__name__}; return a tf.data.Dataset"
            )
        with _lock(directory.with_name(f".{version}.lock")):
            if not directory.is_dir():
                _write(dataset, directory, name)
        _check(directory, dataset.element_spec, name, version)
        return cls(directory, dataset.element_spec)

    def __len__(self) -> int:
        return len(self._index)

    def whole(self, rank: int, size: int) -> Any:
        """Return a dataset of this rank's records, once each."""
        return self._records(tf.data.Dataset.range(rank, len(self), size))

    def endless(self, share: Share, *, shuffle: bool, reshuffle: bool) -> Any:
        """Return a dataset of this rank's records from its first batch on, epoch behind epoch, without end.

        An epoch leaves out the records that do not fill a batch of all ranks; where it is not shuffled anew, the next one begins
        with them.
        """
        batches = len(self) // (share.batch * share.size)
        if not batches:
            raise TrialError(
                f"the cached dataset has {len(self)} records, fewer than the {share.batch * share.size} of one batch; make "
                "global_batch_size smaller"
            )

        used = batches * share.batch * share.size

        def indices(epoch: Any) -> Any:
            order = tf.range(len(self), dtype=tf.int64)
            if shuffle:
                seed = tf.stack([tf.constant(share.seed, tf.int64), epoch if reshuffle else tf.zeros_like(epoch)])
                order = tf.random.experimental.stateless_shuffle(order, seed=seed)
            if not (shuffle and reshuffle):
                order = tf.roll(order, -(epoch * used % len(self)), 0)
            rows = tf.reshape(order[:used], (batches, share.size, share.batch))
            return tf.data.Dataset.from_tensor_slices(tf.reshape(rows[:, share.rank], (-1,)))

        epochs = tf.data.Dataset.range(share.first // batches, ENDLESS)
        dataset = self._records(epochs.flat_map(indices).skip(share.first % batches * share.batch))
        setattr(dataset, _BATCHES, batches)
        return dataset

    def _records(self, numbers: Any) -> Any:
        parts = tf.nest.flatten(self._spec)

        def parsed(record: Any) -> Any:
            tensors = [
                tf.ensure_shape(tf.io.parse_tensor(record[i], part.dtype), part.shape) for i, part in enumerate(parts)
            ]
            return tf.nest.pack_sequence_as(self._spec, tensors)

        read = self._reader(len(parts))
        blocks = numbers.batch(_BLOCK).map(
            lambda block: tf.ensure_shape(tf.numpy_function(read, [block], tf.string), (None, len(parts)))
        )
        return blocks.unbatch().map(parsed, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def _reader(self, parts: int) -> Callable[[Any], Any]:
        index = self._index
        with (self._directory / _DATA).open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

        def read(block: Any) -> Any:
            rows = [[data[row[i] : row[i + 1]] for i in range(parts)] for row in index[block]]
            return np.array(rows, dtype=object).reshape(-1, parts)

        return read


def epoch_of(dataset: Any) -> int | None:
    """Return the batches in an epoch of what was made from a cached training dataset, None for any other."""
    waiting = [dataset]
    while waiting:
        each = waiting.pop()
        found: int | None = getattr(each, _BATCHES, None)
        if found is not None:
            return found
        waiting.extend(each._inputs())
    return None


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _write(dataset: Any, directory: Path, name: str) -> None:
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise TrialError(f"the dataset {name!r} has no end and cannot be cached; leave out .repeat()")
    partial = directory.with_name(f".{directory.name}.{uuid4()}")
    partial.mkdir()
    try:
        places = []
        with (partial / _DATA).open("wb") as file:
            for record in dataset:
                row = [file.tell()]
                for tensor in tf.nest.flatten(record):
                    file.write(tf.io.serialize_tensor(tensor).numpy())
                    row.append(file.tell())
                places.append(row)
            _sync(file)
        if not places:
            raise TrialError(f"the dataset {name!r} is empty and cannot be cached; give it a record at least")
        with (partial / _INDEX).open("wb") as file:
            np.save(file, np.array(places, dtype=np.int64))
            _sync(file)
        (partial / _ABOUT).write_text(json.dumps({"spec": repr(dataset.element_spec), "records": len(places)}))
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _check(directory: Path, spec: Any, name: str, version: str) -> None:
    held = json.loads((directory / _ABOUT).read_text())["spec"]
    if held != repr(spec):
        raise TrialError(
            f"the cache of {name!r}, version {version!r}, holds other records ({held}) than the function makes ({spec!r}); give "
            "another dataset_version"
        )

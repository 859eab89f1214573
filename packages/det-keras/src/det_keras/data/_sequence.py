"""Sequences: `keras.utils.Sequence`, which Keras 3 calls PyDataset."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.pool
import random
import signal
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import TrialError
from det_core.train.rng import untouched_host_rng

from ..versions import KERAS_3, keras
from ._feed import BatchError, Feed, Reading

_EPOCH_END, _BATCH, _VALIDATION, _EPOCH_BEGIN = 0, 1, 2, 3


class SequenceAdapter:
    """A sequence with settings for reading it.

    `workers` is the number of threads, or of processes with `use_multiprocessing`. `max_queue_size`
    is the number of batches to read ahead.
    """

    def __init__(
        self,
        sequence: Any,
        use_multiprocessing: bool = False,
        workers: int = 1,
        max_queue_size: int = 10,
    ) -> None:
        if not hasattr(sequence, "__getitem__"):
            raise TrialError(
                f"SequenceAdapter got {type(sequence).__name__}; give a keras.utils.Sequence"
            )
        for name, value in (("workers", workers), ("max_queue_size", max_queue_size)):
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or value < (name == "max_queue_size")
            ):
                raise TrialError(
                    f"SequenceAdapter got {name}={value!r}; give a whole number of 1 or more"
                )
        self.sequence = sequence
        self.use_multiprocessing = use_multiprocessing
        self.workers = workers
        self.max_queue_size = max_queue_size

    def __len__(self) -> int:
        return len(self.sequence)


class SequenceFeed(Feed):
    """Batches of a sequence, which are read by their index.

    Batches that were trained are not read again. The order of an epoch depends on the seed and the
    epoch. The random numbers of an item depend on the seed and the number of the batch. The random
    numbers of `on_epoch_end` depend on the seed and the epoch.

    Ranks take the items of an epoch in turn. Items at its end that do not suffice for all ranks are
    left out, and without shuffling the next epoch begins with them. A sequence whose `det_sharded`
    is true holds this rank's items only, and is read completely.
    """

    def __init__(self, adapter: SequenceAdapter, name: str, reading: Reading) -> None:
        self._sequence, self._name, self._reading = adapter.sequence, name, reading
        self._adapter = adapter
        self._seeded = SeededReading(reading.seed)
        self._length = _length(adapter.sequence, name)
        self._rank, self._size = (
            (0, 1)
            if getattr(adapter.sequence, "det_sharded", False)
            else (reading.rank, reading.size)
        )
        if self._length < self._size:
            raise TrialError(
                f"{name} returned a sequence of {self._length} batches; give one at least for each"
                f" of {reading.size} ranks"
            )
        self._turns = _overrides(adapter.sequence, "on_epoch_end") or _overrides(
            adapter.sequence, "on_epoch_begin"
        )
        self._turned = 0
        self._readers: list[Reader] = []
        self._readers_lock, self._is_closed = threading.Lock(), False
        self._failure: BaseException | None = None
        self._spec: Any = None
        # Keras 2 never calls this hook.
        if KERAS_3:
            with self._seeded.at(_EPOCH_BEGIN, 0):
                getattr(adapter.sequence, "on_epoch_begin", lambda: None)()
        with self._seeded.at(reading.seed, _VALIDATION):
            first = [self._checked(self._sequence[index]) for index in range(min(2, self._length))]
        self._spec = _spec(first, name)

    @property
    def batches_per_epoch(self) -> int:
        return self._length // self._size

    def training(self, first: int) -> Any:
        return self._dataset(lambda: self._trained(first)).prefetch(tf.data.AUTOTUNE)

    def validation(self) -> Any:
        indices = range(self._rank, self._length, self._size)[: self._reading.validation_steps]
        dataset = self._dataset(lambda: self._evaluated(indices))
        return dataset.apply(tf.data.experimental.assert_cardinality(len(indices)))

    def failure(self) -> BaseException | None:
        return self._failure

    def close(self) -> None:
        # A thread of TensorFlow may still read ahead, and waits for an item.
        with self._readers_lock:
            self._is_closed = True
            readers, self._readers = self._readers, []
        for reader in readers:
            reader.close()

    def _dataset(self, items: Any) -> Any:
        def generate() -> Iterator[Any]:
            try:
                yield from items()
            except Exception as error:
                if self._is_closed:
                    return
                self._failure = error
                raise

        return tf.data.Dataset.from_generator(generate, output_signature=self._spec)

    def _trained(self, first: int) -> Iterator[Any]:
        """Yield the batches from number `first` on, without end."""
        epoch, at = divmod(first, self.batches_per_epoch)
        size, rank, ranks = self._size, self._rank, self._reading.size
        while not self._is_closed:
            self._turn_to(epoch)
            length, shuffle = self._length, self._reading.shuffle
            order = permutation(length, self._reading.seed, epoch) if shuffle else range(length)
            begin = 0 if shuffle else epoch * self.batches_per_epoch * size
            places = [begin + batch * size + rank for batch in range(at, self.batches_per_epoch)]
            mine = [int(order[place % length]) for place in places]
            number = (epoch * self.batches_per_epoch + at) * ranks + self._reading.rank
            yield from self._read(mine, [(_BATCH, number + i * ranks) for i in range(len(mine))])
            epoch, at = epoch + 1, 0

    def _turn_to(self, epoch: int) -> None:
        """Call the sequence's own epoch hooks for all epochs up to this one.

        That includes the epochs of an interrupted run, because the hooks may change what the
        sequence holds.
        """
        if not self._turns:
            return
        while self._turned < epoch:
            with self._seeded.at(_EPOCH_END, self._turned):
                for method in ("on_epoch_end", "on_epoch_begin"):
                    getattr(self._sequence, method, lambda: None)()
            self._turned += 1

    def _evaluated(self, indices: range) -> Iterator[Any]:
        yield from self._read(list(indices), [(_VALIDATION, index) for index in indices])

    def _read(self, indices: list[int], positions: list[tuple[int, ...]]) -> Iterator[Any]:
        with self._readers_lock:
            if self._is_closed:
                return
            reader = make_reader(
                self._sequence,
                self._seeded,
                self._reading.seed,
                self._adapter.workers,
                self._adapter.use_multiprocessing,
            )
            self._readers.append(reader)
        ahead: deque[Any] = deque()
        todo = zip(indices, positions, strict=True)
        try:
            for index, position in todo:
                ahead.append(reader.ask(index, position))
                if len(ahead) > reader.ahead(self._adapter.max_queue_size):
                    yield self._checked(ahead.popleft()())
            while ahead:
                yield self._checked(ahead.popleft()())
        finally:
            with self._readers_lock:
                if reader in self._readers:
                    self._readers.remove(reader)
            reader.close()

    def _checked(self, item: Any) -> Any:
        """Return an item in the form that TensorFlow reads.

        Raises BatchError if it is not a batch.
        """
        if not isinstance(item, (tuple, list)) or (
            len(item) not in (2, 3) and not self._reading.any_structure
        ):
            what = (
                f"a {type(item).__name__} of {len(item)}"
                if isinstance(item, (tuple, list))
                else type(item).__name__
            )
            raise BatchError(
                f"the sequence that {self._name} returned has an item that is {what}; let its items"
                " be (inputs, targets) or (inputs, targets, sample_weights)"
            )
        given = list(item)
        while given and given[-1] is None:
            given.pop()
        if any(part is None for part in given):
            raise BatchError(
                f"the sequence that {self._name} returned has an item with None before another"
                " part; only parts at its end may be None"
            )
        plain = tuple(_plain(part) for part in given)
        if self._spec is not None and not _same_structure(plain, self._spec):
            raise BatchError(
                f"the items of the sequence that {self._name} returned differ in their parts; let"
                " all have the same"
            )
        return plain


def _length(sequence: Any, name: str) -> int:
    try:
        length = len(sequence)
    except (TypeError, NotImplementedError, AttributeError) as error:
        raise TrialError(
            f"{name} returned a sequence without a length; define __len__(self) on"
            f" {type(sequence).__name__}"
        ) from error
    if not isinstance(length, int) or length < 1:
        raise TrialError(f"{name} returned a sequence of {length} batches; give it one at least")
    return length


def _overrides(sequence: Any, method: str) -> bool:
    base = getattr(keras.utils.Sequence, method, None)
    own = getattr(type(sequence), method, None)
    return own is not None and own is not base


def _plain(part: Any) -> Any:
    """Convert a part of an item to arrays, and keep its structure."""
    if isinstance(part, dict):
        return {key: _plain(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)) and part and all(hasattr(each, "shape") for each in part):
        return tuple(_plain(each) for each in part)
    array = part.numpy() if isinstance(part, tf.Tensor) else np.asarray(part)
    return array.astype(keras.backend.floatx(), copy=False) if array.dtype.kind == "f" else array


def _same_structure(item: Any, spec: Any) -> bool:
    try:
        tf.nest.assert_same_structure(item, spec)
    except (TypeError, ValueError):
        return False
    return True


def _spec(items: list[Any], name: str) -> Any:
    """Return the types and the common sizes of items, for TensorFlow.

    The batch dimension stays open.
    """
    if not all(_same_structure(item, items[0]) for item in items):
        raise BatchError(
            f"the items of the sequence that {name} returned differ in their parts; let all have"
            " the same"
        )

    def common(*arrays: Any) -> Any:
        ranks = {array.ndim for array in arrays}
        if ranks == {0} or len(ranks) > 1:
            raise BatchError(
                f"the items of the sequence that {name} returned hold numbers, or arrays of"
                " different axes; let each hold arrays"
            )
        sizes = [
            size if len({array.shape[axis] for array in arrays}) == 1 else None
            for axis, size in enumerate(arrays[0].shape)
        ]
        return tf.TensorSpec([None, *sizes[1:]], arrays[0].dtype)

    return tf.nest.map_structure(common, *items)


class SeededReading:
    """Runs the user's reading of data with Python's and NumPy's generators seeded for a position.

    Afterwards it restores the process's generators, from which training draws. While `paused`, no
    reader uses them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._lock = threading.RLock()

    @contextmanager
    def at(self, *position: int) -> Iterator[None]:
        """Read with generators that depend on the seed and these numbers only."""
        with self._lock, untouched_host_rng():
            begin(self._seed, *position)
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep readers from using the generators inside the body."""
        with self._lock:
            yield


def permutation(length: int, seed: int, epoch: int) -> Any:
    """Return the order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(length)


def begin(*numbers: int) -> None:
    """Seed Python's and NumPy's generators with numbers."""
    np.random.seed(np.array(numbers, dtype=np.uint64).view(np.uint32))
    random.seed(":".join(map(str, numbers)))


_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.5
"""How often somebody who waits for an item looks whether its process can still read it."""


class Reader(ABC):
    """Reads items by index. `ask` returns a function that waits for the item.

    After `close`, which another thread may call, that function raises an error.
    """

    @abstractmethod
    def ask(self, index: int, position: tuple[int, ...]) -> Callable[[], Any]: ...

    def ahead(self, wanted: int) -> int:
        """Return how many items may be requested before the first is awaited."""
        return wanted

    def close(self) -> None:
        pass


def make_reader(
    sequence: Any, seeded: SeededReading, seed: int, workers: int, processes: bool
) -> Reader:
    if processes and workers > 0:
        return _Processes(sequence, seed, workers)
    return _Threads(sequence, seeded, workers) if workers > 1 else _Here(sequence, seeded)


class _Here(Reader):
    """Reads items one by one in the calling thread."""

    def __init__(self, sequence: Any, seeded: SeededReading) -> None:
        self._sequence, self._seeded = sequence, seeded

    def ask(self, index: int, position: tuple[int, ...]) -> Callable[[], Any]:
        def read() -> Any:
            with self._seeded.at(*position):
                return self._sequence[index]

        return read

    def ahead(self, wanted: int) -> int:
        return 0


class _Threads(Reader):
    """Reads items in threads.

    They share the process's generators, so that random draws are not reproducible.
    """

    def __init__(self, sequence: Any, seeded: SeededReading, workers: int) -> None:
        self._sequence = sequence
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="det-sequence")

    def ask(self, index: int, position: tuple[int, ...]) -> Callable[[], Any]:
        return self._pool.submit(self._sequence.__getitem__, index).result

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class _Processes(Reader):
    """Reads items in forked processes, as Keras does.

    Each process seeds its generators for every item, and ends with this process.
    """

    def __init__(self, sequence: Any, seed: int, workers: int) -> None:
        self._seed, self._workers, self._is_closed = seed, workers, False
        context = multiprocessing.get_context("fork")
        # How many processes have begun. The pool replaces one that was killed, and forgets what it
        # was reading.
        self._begun = context.Value("i", 0)
        self._pool: multiprocessing.pool.Pool = context.Pool(
            workers, _enter, (sequence, self._begun)
        )

    def ask(self, index: int, position: tuple[int, ...]) -> Callable[[], Any]:
        pending = self._pool.apply_async(_item, (index, self._seed, position))

        def wait() -> Any:
            while not self._is_closed:
                with suppress(multiprocessing.TimeoutError):
                    return pending.get(_LOOK_SECONDS)
                if self._begun.value > self._workers:
                    raise TrialError(
                        f"a process that read item {index} or another of the sequence was killed:"
                        " most often the machine or its container had no memory left"
                    )
            raise CancelledError

        return wait

    def close(self) -> None:
        self._is_closed = True
        self._pool.terminate()
        self._pool.join()


class _Entered:
    """The sequence that a worker process reads. It is set once when the process starts."""

    sequence: Any = None


def _enter(sequence: Any, begun: Any) -> None:
    with begun.get_lock():
        begun.value += 1
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _Entered.sequence = sequence


def _item(index: int, seed: int, position: tuple[int, ...]) -> Any:
    begin(seed, *position)
    return _Entered.sequence[index]

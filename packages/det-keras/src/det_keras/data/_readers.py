"""Reading items of a sequence: here, in threads, or in processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.pool
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ._order import SeededReading, begin

_PR_SET_PDEATHSIG = 1


class Reader(ABC):
    """Reads items by index; `ask` returns what waits for the item."""

    @abstractmethod
    def ask(self, index: int, position: tuple[int, ...]) -> Callable[[], Any]: ...

    def ahead(self, wanted: int) -> int:
        """Return how many items may be asked for before the first is waited for."""
        return wanted

    def close(self) -> None:
        pass


def make_reader(sequence: Any, seeded: SeededReading, seed: int, workers: int, processes: bool) -> Reader:
    if processes and workers > 0:
        return _Processes(sequence, seed, workers)
    return _Threads(sequence, seeded, workers) if workers > 1 else _Here(sequence, seeded)


class _Here(Reader):
    """In the thread that asks, one by one."""

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
    """In threads, which share the process's generators: an item that draws from those draws whatever comes."""

    def __init__(self, sequence: Any, seeded: SeededReading, workers: int) -> None:
        self._sequence = sequence
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="det-sequence")

    def ask(self, index: int, position: tuple[int, ...]) -> Callable[[], Any]:
        return self._pool.submit(self._sequence.__getitem__, index).result

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class _Processes(Reader):
    """In forked processes, as Keras does; each seeds its generators for every item, and ends with this process."""

    def __init__(self, sequence: Any, seed: int, workers: int) -> None:
        self._seed = seed
        context = multiprocessing.get_context("fork")
        self._pool: multiprocessing.pool.Pool = context.Pool(workers, _enter, (sequence,))

    def ask(self, index: int, position: tuple[int, ...]) -> Callable[[], Any]:
        return self._pool.apply_async(_item, (index, self._seed, position)).get

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


class _Entered:
    """What a worker process reads; set once, as it starts."""

    sequence: Any = None


def _enter(sequence: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _Entered.sequence = sequence


def _item(index: int, seed: int, position: tuple[int, ...]) -> Any:
    begin(seed, *position)
    return _Entered.sequence[index]

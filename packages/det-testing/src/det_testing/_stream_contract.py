"""The contract of a stream of training data.

A stream that is stopped gives the same batches when it is restored, or warns that it cannot.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any

MAKE = Callable[[int, int, int], Any]
AT_MOST = 100_000


@dataclass(frozen=True, kw_only=True)
class StreamCase:
    """The results of stops with a number of workers and ranks, which continued on `onto` ranks."""

    workers: int
    ranks: int
    onto: int
    stops: int = 0
    differing: list[tuple[int, int]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    largest: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        how = "exact" if not self.differing else f"{len(self.differing)} of {self.stops} differ"
        words = f"; warned: {self.warnings[0]}" if self.warnings else ""
        ranks = f"{self.ranks}" if self.ranks == self.onto else f"{self.ranks} to {self.onto}"
        place = (
            f"state at most {self.largest:,} bytes, resumed in at most {1000 * self.seconds:.0f} ms"
        )
        return f"{self.workers} workers, {ranks:>6} ranks: {how}, {place}{words}"


class StreamContract:
    """Stops a stream of training data, and compares a restored stream with an uninterrupted one.

    `make_loader(workers, rank, size)` returns a new loader of the same data, as a run on `size`
    ranks would make it. Its batches have `global / size` records. `stream(loader, seed=, rank=,
    size=)` is the framework's stream, with `batches(done)`, `state(done)`, `restore(state)`,
    `warning` and `close()`. `plain` converts a batch to a value that can be compared.
    """

    def __init__(
        self,
        make_loader: MAKE,
        stream: Callable[..., Any],
        *,
        batches: int,
        plain: Callable[[Any], Any] = repr,
        seed: int = 7,
    ) -> None:
        self._make, self._stream, self._plain, self._seed = make_loader, stream, plain, seed
        self._count = batches

    def check(
        self,
        *,
        workers: Sequence[int] = (0, 2),
        ranks: Iterable[tuple[int, int]] = ((1, 1), (2, 2), (2, 1), (1, 2)),
        stops: Sequence[int] | None = None,
    ) -> list[StreamCase]:
        """Return the results of all cases.

        `stops` are batches of a rank, by default all but the last. Raises AssertionError if batches
        differ after a stop without a warning, or if a state has more than 100 kB.
        """
        seen = [
            self._case(each, old, new, stops or range(1, self._count))
            for each in workers
            for old, new in ranks
        ]
        for case in seen:
            assert case.largest <= AT_MOST, (
                f"a place takes {case.largest} bytes, more than {AT_MOST}: {case}"
            )
            assert case.warnings or not case.differing, (
                f"batches differ after stops at {case.differing}, unsaid: {case}"
            )
        return seen

    def _case(self, workers: int, old: int, new: int, stops: Sequence[int]) -> StreamCase:
        states = [self._states(workers, rank, old, stops) for rank in range(old)]
        differing, warned, seconds = [], [], 0.0
        for rank in range(new):
            whole = self._read(workers, rank, new, 0, self._count)[0]
            for stop, then in zip(stops, [*stops[1:], None], strict=True):
                mine = states[rank if old == new else 0][stop]
                rest, twice, words, took = self._read(
                    workers, rank, new, stop, self._count, mine, then
                )
                if then is not None and old == new:
                    # Stop the restored stream again at the next stop.
                    again, _, more, _ = self._read(workers, rank, new, then, self._count, twice)
                    rest, words = rest[: then - stop] + again, words + more
                if rest != whole[stop:]:
                    differing.append((stop, rank))
                warned += [word for word in words if word not in warned]
                seconds = max(seconds, took)
        sizes = [len(state) for each in states for state in each.values()]
        return StreamCase(
            workers=workers, ranks=old, onto=new, stops=len(stops) * new, differing=differing,
            warnings=warned, largest=max(sizes), seconds=seconds,
        )  # fmt: skip

    def _states(self, workers: int, rank: int, size: int, stops: Sequence[int]) -> dict[int, bytes]:
        stream = self._stream(
            self._make(workers, rank, size), seed=self._seed, rank=rank, size=size
        )
        found = {}
        for done, _ in enumerate(islice(stream.batches(0), max(stops)), 1):
            if done in stops:
                found[done] = pickle.dumps(stream.state(done))
        stream.close()
        return found

    def _read(
        self,
        workers: int,
        rank: int,
        size: int,
        first: int,
        end: int,
        state: bytes | None = None,
        stop: int | None = None,
    ) -> tuple[list[Any], bytes | None, list[str], float]:
        """Return the batches from `first` to `end`, the state at `stop`, and warnings.

        The last value is the time until the first batch, in seconds.
        """
        stream = self._stream(
            self._make(workers, rank, size), seed=self._seed, rank=rank, size=size
        )
        began, took, kept, batches = perf_counter(), 0.0, None, []
        # The suite has pickled it itself.
        stream.restore(None if state is None else pickle.loads(state))  # nosec B301
        for done, batch in enumerate(islice(stream.batches(first), end - first), first + 1):
            took = took or perf_counter() - began
            batches.append(self._plain(batch))
            if done == stop:
                kept = pickle.dumps(stream.state(done))
        warning = stream.warning
        stream.close()
        return batches, kept, [warning] if warning else [], took

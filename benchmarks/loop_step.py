"""Print what one `Loop.step` costs in nanoseconds.

Between boundaries, and with a report every 100 batches.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from det_core import (
    Adapter,
    DistributedContext,
    Every,
    LocalHost,
    Loop,
    Metrics,
    RunInfo,
    Schedule,
    Target,
)

BETWEEN = 4_000  # fewer than the loop keeps on the device before it fetches them
ROUNDS = 100
NEVER = 1_000_000_000


class Nothing(Adapter[Any]):
    """Trains nothing: what is left is the loop."""

    @classmethod
    def create(cls, trial: type[Any], run: RunInfo) -> Nothing:
        return cls()

    def train(self, loop: Loop) -> None:
        pass

    def validate(self) -> Metrics:
        return {}

    def save(self, path: Path) -> None:
        pass

    def load(self, path: Path) -> None:
        pass


def a_loop(report: int) -> Loop:
    """Return a loop that has begun, and reports every `report` batches."""
    schedule = Schedule(report=Every(report))
    loop = Loop(
        Nothing(), schedule, LocalHost(Target(n=NEVER)), DistributedContext(), lambda progress: True
    )
    loop.begin()
    return loop


def nanoseconds(report: int, steps: int) -> list[float]:
    """Return the cost of a step in each round, without that of the `for` around it."""
    metrics = {"loss": 0.5}
    results = []
    for _ in range(ROUNDS):
        step = a_loop(report).step
        started = time.perf_counter()
        for _ in range(steps):
            step(metrics)
        stepped = time.perf_counter()
        for _ in range(steps):
            pass
        ended = time.perf_counter()
        results.append(((stepped - started) - (ended - stepped)) / steps * 1e9)
    return results


def main() -> None:
    for name, report, steps in (
        ("between boundaries", NEVER, BETWEEN),
        ("reported every 100", 100, 20_000),
    ):
        rounds = nanoseconds(report, steps)
        print(
            f"Loop.step, {name}: best {min(rounds):.0f} ns, median"
            f" {statistics.median(rounds):.0f} ns"
        )


if __name__ == "__main__":
    main()

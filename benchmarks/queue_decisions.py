"""What a decision of the queue for slots costs, with 10,000 runs that wait.

    python benchmarks/queue_decisions.py

Prints the processor time of one decision, the least of several in this process: of the decision
alone, for runs of 200, of 1,000 and of 10,000 experiments, and of a driver's whole request for
slots with 200 experiments, which reads the queue from the index and writes to it.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from det_driver.queue import Holding, Request, decide
from det_driver.store import Store

RUNS, SLOTS, USERS = 10_000, 64, 20
DEVICES = tuple(f"cuda:GPU-{k}" for k in range(SLOTS))
NOW = 1e6


def make_state(experiments: int) -> tuple[list[Request], list[Holding]]:
    """Return runs of several priorities, weights and users, and a machine with two free slots."""
    waiting = [
        Request(
            experiment=k,
            slots=1 + k % 4,
            runs=RUNS // experiments,
            devices=DEVICES,
            priority=(10, 42, 42, 42, 60)[k % 5],
            user=f"user {k % USERS}",
            weight=(1.0, 2.0)[k % 2],
            used=float(k * 37 % 1000),
            used_by_user=float(k % USERS),
            since=NOW - k * 61 % 3000,
            turn=k,
        )
        for k in range(experiments)
    ]
    running = [
        Holding(experiment=-k, devices=(device,), priority=(42, 50, 99)[k % 3], since=NOW - k)
        for k, device in enumerate(DEVICES[:-2])
    ]
    return waiting, running


def measure(act: Callable[[], object], times: int) -> float:
    """Return the least processor time of a call, in milliseconds."""
    seconds = []
    for _ in range(times):
        began = time.process_time()
        act()
        seconds.append(time.process_time() - began)
    return 1e3 * min(seconds)


def main() -> None:
    for experiments in (200, 1000, RUNS):
        waiting, running = make_state(experiments)
        cost = measure(lambda w=waiting, r=running: decide(w, r, NOW), 50)
        print(f"decision, {experiments:6,} experiments  {cost:8.3f} ms", flush=True)
    with (
        tempfile.TemporaryDirectory() as home,
        Store(Path(home)) as store,
        Store(Path(home)) as driver,
    ):
        store.slots.leases(1, SLOTS, DEVICES)
        for id in range(2, 202):
            store.slots.set_share(id, 42, 1.0, f"user {id % USERS}")
            store.slots.leases(id, 1, DEVICES, count=RUNS // 200)
        # The same request would not be decided again at once.
        counts = itertools.cycle((RUNS // 200, RUNS // 200 - 1))
        cost = measure(lambda: driver.slots.leases(2, 1, DEVICES, count=next(counts)), 50)
        print(f"request,  {200:6,} experiments  {cost:8.3f} ms")


if __name__ == "__main__":
    main()

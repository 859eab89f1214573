"""How long a driver waits for others of the same home.

They are three whose observers sleep, and one experiment that is deleted meanwhile.

A fourth driver does, over and over, what a driver does with a word: it leases a device, commits a
report to its own database and gives the device back. The figures are milliseconds, alone and beside
the others: what a turn takes, with what the disk and the machine take for themselves, and how long
it waited for a database that another was writing (a transaction begins when that is over, before
anything of its own is written): at most 50 is the goal.

    python benchmarks/neighbours.py [--seconds 20]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from search_throughput import ADAPTER, CONFIG, HOOKS, MODEL, TRIAL, write

from det_core.config import parse, to_json
from det_driver.store import Store
from det_driver.store._database import Database

SLEEPS = """

    @hookimpl
    def det_metrics_reported(trial):
        import time
        time.sleep(0.2)
"""
REPORTS = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="det-bench-") as scratch:
        root = Path(scratch)
        write(root / "project", model_def=MODEL)
        (root / "project" / "c.yaml").write_text(
            CONFIG.format(trials=1000, at_once=2).replace("\n    ", "\n")
        )
        site = write(
            root / "site", reporter_hooks=HOOKS + SLEEPS, reporter=TRIAL, reporter_adapter=ADAPTER
        )
        info = site / "reporter-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reporter\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[det]\nreporter = reporter_hooks\n")
        home = root / "home"
        env = {
            **os.environ,
            "DET_HOME": str(home),
            "PYTHONPATH": str(site),
            "DET_SLOTS_TOTAL": "6",
            "DET_LEASE": "0",
        }
        det = [sys.executable, "-m", "det_driver.cli"]
        doomed = fill(home)
        shown("alone", *waits(home, seconds))
        drivers = [
            subprocess.Popen([*det, "run", str(root / "project" / "c.yaml"), "--quiet"], env=env)
            for _ in range(3)
        ]
        time.sleep(10.0)
        removal = subprocess.Popen(
            [*det, "rm", str(doomed), "--yes"], env=env, stdout=subprocess.DEVNULL
        )
        shown("beside three drivers whose observers sleep, and a deletion", *waits(home, seconds))
        for driver in drivers:
            driver.kill()
            driver.wait()
        removal.wait()
        time.sleep(3.0)  # what they had started ends by itself


def fill(home: Path) -> int:
    """Make an experiment with many reports; return its number."""
    with Store(home) as store:
        trial, run, id = begin(store)
        with store.lock(id), store.transaction():
            for batches in range(REPORTS):
                store.metrics.report(trial, run, "training", batches, {"loss": 0.5})
        store.experiments.update(id, state="COMPLETED")
    return id


def begin(store: Store) -> tuple[int, int, int]:
    searcher = {"name": "single", "metric": "loss", "max_length": 1}
    config = to_json(
        parse({"name": "waits", "entrypoint": "model_def:Trial", "searcher": searcher}).config
    )
    id = store.experiments.create(
        name="waits",
        config=config,
        entrypoint="model_def:Trial",
        metric="loss",
        smaller_is_better=True,
    ).id
    with store.lock(id), store.transaction():
        trial = store.trials.create(id, 0, {}, seed=0)
        return trial.id, store.runs.begin(trial.id).id, id


@contextmanager
def timed() -> Iterator[list[float]]:
    """Note how long each transaction of this process waits until it can begin."""
    found: list[float] = []
    enter = Database.__enter__

    def begin(database: Database) -> None:
        began = time.perf_counter()
        try:
            enter(database)
        finally:
            found.append((time.perf_counter() - began) * 1000)

    Database.__enter__ = begin  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Database.__enter__ = enter  # type: ignore[method-assign]


def waits(home: Path, seconds: float) -> tuple[list[float], list[float]]:
    """Return what each turn took, and how long each of its transactions waited for others."""
    found, deadline = [], time.monotonic() + seconds
    with Store(home) as store, timed() as others:
        trial, run, id = begin(store)
        with store.lock(id):
            batches = 0
            while time.monotonic() < deadline:
                batches += 1
                began = time.perf_counter()
                lease = store.slots.lease(id, 1, ("cpu:of-this-benchmark",))
                with store.transaction():
                    store.metrics.report(trial, run, "training", batches, {"loss": 0.5})
                if lease:
                    store.slots.release(lease)
                found.append((time.perf_counter() - began) * 1000)
                time.sleep(0.005)
    return found, others


def shown(name: str, found: list[float], others: list[float]) -> None:
    parts = statistics.quantiles(found, n=1000)
    print(
        f"{name}: median {parts[499]:.1f} ms, 99 % within {parts[989]:.1f}, 99.9 % within"
        f" {parts[998]:.1f}, longest {max(found):.1f} ({len(found)} turns); waited for others at"
        f" most {max(others):.1f} ms (goal: 50)",
        flush=True,
    )


if __name__ == "__main__":
    main()

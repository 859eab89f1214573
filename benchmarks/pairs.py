"""Pairs of runs of two ranks, one under det and one without.

`distributed.py` and `keras_distributed.py` measure with them.

Each run is a process of its own in a folder of its own, in turn the one and the other first. Times
are those of rank 0; the start is from the launcher's first instruction to the end of the first
step. Figures are medians, with the interval between the quartiles.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# torchrun's processes abort at their end now and then: "terminate called without an active
# exception".
ATTEMPTS = 5
WARM_UP = 50


class Clock:
    """CPU and wall time of rank 0 from the end of the warm-up to the last step.

    Every loop tells it of its steps.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.last = int(os.environ["BENCHMARK_STEPS"]) + WARM_UP
        self._result: dict[str, float] = {}

    def tick(self, done: int) -> None:
        """Take note that so many steps are done."""
        if done == 1:
            self._result["first"] = time.time()
        elif done == WARM_UP:
            self._cpu, self._wall = time.process_time(), time.perf_counter()
        elif done == self.last and self._rank == 0:
            self._result |= {
                "cpu": time.process_time() - self._cpu,
                "wall": time.perf_counter() - self._wall,
            }
            Path(os.environ["BENCHMARK_RESULT"]).write_text(json.dumps(self._result))


def compare(
    name: str, commands: dict[str, list[str]], config: str, *, script: str, pairs: int, steps: int
) -> list[float]:
    """Run the commands `det` and `plain` in turn, and print the ratios.

    Return the plain step times in milliseconds.

    Both run `script`, and find it beside `config`, in which LENGTH stands for the number of steps.
    """
    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    later, plain = [], []
    for pair in range(pairs):
        measured = {
            kind: measure(commands[kind], config, script, steps)
            for kind in (("det", "plain") if pair % 2 else ("plain", "det"))
        }
        for kind, values in ratios.items():
            values.append(measured["det"][kind] / measured["plain"][kind])
        later.append(measured["det"]["start"] - measured["plain"]["start"])
        plain.append(measured["plain"]["wall"] / steps * 1e3)
    print(
        f"{name:8} wall {shown(ratios['wall'])}   CPU {shown(ratios['cpu'])}   first step"
        f" {shown(later)} s later   ({pairs} pairs; a plain step takes {shown(plain)} ms)",
        flush=True,
    )
    return plain


def shown(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def measure(command: list[str], config: str, script: str, steps: int) -> dict[str, float]:
    """Run a command in a folder of its own.

    Return rank 0's seconds for the steps, and until the first one was done.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for needed in (script, __file__):
            shutil.copy(needed, scratch)
        Path(scratch, "config.yaml").write_text(config.replace("LENGTH", str(steps + WARM_UP)))
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {
            "DET_HOME": f"{scratch}/home",
            "DET_SLOTS_TOTAL": "2",
            "OMP_NUM_THREADS": "1",
            "PATH": path,
        }
        own |= {"BENCHMARK_STEPS": str(steps), "BENCHMARK_RESULT": f"{scratch}/result.json"}
        for _ in range(ATTEMPTS):
            began = time.time()
            done = subprocess.run(
                command,
                cwd=scratch,
                env={**os.environ, **own},
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            if done.returncode == 0:
                break
            print(
                f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}",
                file=sys.stderr,
            )
        else:
            raise SystemExit(f"{' '.join(command)} failed {ATTEMPTS} times")
        result: dict[str, float] = json.loads(Path(scratch, "result.json").read_text())
    return {**result, "start": result["first"] - began}

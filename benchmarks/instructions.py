"""What a step costs by what the processor is told to do, counted under valgrind.

It is the same whatever else the machine does.

Each loop is run twice, for a few steps and for 1,000 more, so that all that is done once cancels
out. Two things that may be done in one of the two alone are not counted: the first run of a new
environment compiles its modules, and the collector goes through all objects once in tens of
thousands of steps, or at the end, which is the work of 20 steps.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable

FEW, MORE = 300, 1300
VALGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]


def count(name: str, script: Callable[[str, int], list[str]]) -> float:
    """Print and return the ratio of the instructions of a step of `name` to those of the bare one.

    `script` gives the words that make Python run one of them for so many steps.
    """
    for which in ("bare", name):
        _run([sys.executable, *script(which, 1)])
    each = {
        which: (_refs(script(which, MORE)) - _refs(script(which, FEW))) / (MORE - FEW)
        for which in ("bare", name)
    }
    ratio = each[name] / each["bare"]
    print(
        f"{name:10} instructions {ratio:.4f}   (a bare step takes {each['bare']:,.0f})", flush=True
    )
    return round(ratio, 4)


def collect_no_whole_heap() -> None:
    """Leave the youngest two generations to the collector of this process.

    Each loop that is counted calls it first.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 2**31 - 1)


def _refs(words: list[str]) -> int:
    told = _run([*VALGRIND, sys.executable, *words])
    return int(re.findall(r"I\s+refs:\s+([\d,]+)", told)[-1].replace(",", ""))


def _run(words: list[str]) -> str:
    fixed = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, cwd=scratch, env=fixed
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")
    return done.stderr

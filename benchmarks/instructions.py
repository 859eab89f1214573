"""What a step costs by what the processor is told to do, counted under valgrind.

It is the same whatever else the machine does.

Each loop is run once. The steps after its warm-up are counted and nothing else: the loop calls
`start` before the first of them and `stop` after the last. Whole collections of the heap, one in
tens of thousands of steps, are left out.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# The library whose functions begin and end the count, in a process that runs under valgrind.
_LIBRARY = "DET_BENCHMARK_COUNTER"
_SOURCE = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""
_VALGRIND = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
# TensorFlow's threads wait by spinning, which would be counted. It reads these as it starts.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
}


def count(name: str, script: Callable[[str, int], list[str]], steps: int = 1000) -> float:
    """Print and return the ratio of the instructions of a step of `name` to those of the bare one.

    `script` gives the words that make Python run one of them for so many steps after its warm-up.
    """
    each = {which: _instructions(script(which, steps)) / steps for which in ("bare", name)}
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


def start() -> None:
    """Begin the count, if this process is one that `count` runs."""
    if _LIBRARY in os.environ:
        _counter().start()


def stop() -> None:
    """End the count."""
    if _LIBRARY in os.environ:
        _counter().stop()


@functools.cache
def _counter() -> ctypes.PyDLL:
    return ctypes.PyDLL(os.environ[_LIBRARY])


def _instructions(words: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        library, counts = Path(scratch, "counter.so"), Path(scratch, "counts")
        _run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)], {}, scratch, _SOURCE)
        _run(
            [*_VALGRIND, f"--callgrind-out-file={counts}", sys.executable, *words],
            {_LIBRARY: str(library), "PYTHONHASHSEED": "0", **_ONE_THREAD},
            scratch,
        )
        found = re.findall(r"^totals: (\d+)$", counts.read_text(), re.MULTILINE)
    if not found:
        raise SystemExit(f"{' '.join(words)} did not begin and end its count")
    return int(found[-1])


def _run(words: list[str], variables: dict[str, str], folder: str, given: str = "") -> None:
    done = subprocess.run(
        words,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **variables},
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")

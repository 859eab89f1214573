"""What the check before training costs on examples/digits_torch, beside det run without it.

`python benchmarks/check_first.py`

Both are run by turns. The figures are the median of the paired differences and of the paired
ratios, with the quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/digits_torch"


def seconds(check: bool) -> float:
    words = [
        "run",
        EXAMPLE / "const.yaml",
        EXAMPLE,
        "--quiet",
        "--config",
        f"check_first={str(check).lower()}",
    ]
    with tempfile.TemporaryDirectory() as home:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-P", "-m", "det_driver.cli", *words],
            env={**os.environ, "DET_HOME": home},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    pairs = parser.parse_args().pairs
    seconds(True)  # writes the byte code
    timed = []
    for number in range(pairs):
        order = (True, False) if number % 2 else (False, True)
        each = {check: seconds(check) for check in order}
        timed.append((each[True], each[False]))
    for name, values in (
        ("seconds more", [with_it - without for with_it, without in timed]),
        ("ratio", [with_it / without for with_it, without in timed]),
    ):
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:14} {middle:.2f} [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()

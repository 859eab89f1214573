"""What it costs to import det_core and to ask the command for help, beside an empty interpreter.

`python benchmarks/startup.py`

Each figure is the median of paired differences against `python -c pass`, with the interval between
the quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "import det_core": (["-c", "import det_core"], 0.060),
    "import det_driver.cli": (["-c", "import det_driver.cli"], None),
    "det --help": (["-m", "det_driver.cli", "--help"], 0.200),
}
NOTHING = ["-c", "pass"]


def seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=25)
    pairs = parser.parse_args().pairs
    for name, (arguments, most) in COMMANDS.items():
        seconds(arguments)  # writes the byte code
        more = [seconds(arguments) - seconds(NOTHING) for _ in range(pairs)]
        low, middle, high = statistics.quantiles(more, n=4)
        aim = f", to be at most {1e3 * most:.0f} ms" if most else ""
        print(
            f"{name:24} {1e3 * middle:6.1f} ms [{1e3 * low:.1f}, {1e3 * high:.1f}] more than"
            f" nothing{aim}"
        )


if __name__ == "__main__":
    main()

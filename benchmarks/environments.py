"""What an environment costs: a first one, again, with a package more, twenty at once.

`python benchmarks/environments.py`

Packages come from the indexes that pip knows. `--packages` names others than PyTorch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from det_core.hooks import Plugins
from det_env import UvMaker
from det_node.environments import READY, Wanted, digest_of, interpreter, make, place_of

BRINGS = ("det-training-core", "det-node")


def disk(root: Path) -> int:
    """Return the bytes below a directory, those of files with several names once."""
    seen = dict[tuple[int, int], int]()
    for directory, _, files in os.walk(root):
        for name in files:
            stat = os.lstat(os.path.join(directory, name))
            seen[stat.st_dev, stat.st_ino] = 512 * stat.st_blocks
    return sum(seen.values())


def processor() -> float:
    """Return the seconds that this process and those that it waited for have worked."""
    return sum(os.times()[:4])


def solved(root: Path, code: Path, requirements: tuple[str, ...]) -> Path:
    into = Path(tempfile.mkdtemp(dir=code))
    UvMaker().solve(
        Wanted(python="", requirements=requirements, directory=code, brings=BRINGS, root=root), into
    )
    return into


def once(what: str, root: Path, code: Path, requirements: tuple[str, ...], aim: str = "") -> Path:
    before, worked, began = disk(root), processor(), time.perf_counter()
    files = solved(root, code, requirements)
    digest, between = digest_of(files), time.perf_counter()
    python = interpreter(root, digest) or make("uv", files, digest, root, Plugins.installed())
    took = time.perf_counter() - began
    grown = (disk(root) - before) / 1e6
    worked = processor() - worked
    said = f"{took:7.2f} s (solving {between - began:.2f}, processor {worked:.2f})"
    print(f"{what:32} {said}, {grown:8.1f} MB more{aim}", flush=True)
    return Path(python)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", nargs="+", default=["torch==2.13.0", "numpy"])
    parser.add_argument("--more", default="six==1.16.0", help="the package that is one more")
    parser.add_argument("--at-once", type=int, default=20)
    arguments = parser.parse_args()
    packages = tuple(arguments.packages)
    with tempfile.TemporaryDirectory(prefix="det-environments-") as scratch:
        root, code = Path(scratch) / "envs", Path(scratch) / "code"
        root.mkdir()
        code.mkdir()
        imports = f"import {', '.join(text.partition('=')[0] for text in packages)}"
        first = once(f"first: {' '.join(packages)}", root, code, packages)
        began = time.perf_counter()
        subprocess.run([first, "-c", imports], check=True)
        print(f"{'importing them there':32} {time.perf_counter() - began:7.2f} s")
        once("the same again", root, code, packages, ", to be at most 0.1 s")
        more = once(
            "one package more",
            root,
            code,
            (*packages, arguments.more),
            ", to be at most 2 s and 20 MB",
        )
        before = disk(root)
        began = time.perf_counter()
        subprocess.run([more, "-c", imports], check=True)
        took = time.perf_counter() - began
        print(
            f"{'importing them there':32} {took:7.2f} s, {(disk(root) - before) / 1e6:8.1f} MB of"
            " byte code more"
        )

        files = solved(root, code, (*packages, arguments.more, "click==8.1.7"))
        argv = [
            sys.executable,
            "-P",
            "-m",
            "det_node.environments",
            "uv",
            digest_of(files),
            str(root),
        ]
        began = time.perf_counter()
        with ThreadPoolExecutor(arguments.at_once) as threads:
            said = list(
                threads.map(
                    lambda _: subprocess.check_output(argv, cwd=files, text=True),
                    range(arguments.at_once),
                )
            )
        built = sum("making" in text for text in said)
        print(
            f"{f'{arguments.at_once} at once':32} {time.perf_counter() - began:7.2f} s, made"
            f" {built} time(s)"
        )
        assert (place_of(root, digest_of(files)) / READY).exists()


if __name__ == "__main__":
    main()

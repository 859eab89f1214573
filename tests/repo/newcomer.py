"""A newcomer's walk.

`python -m tests.repo.newcomer` does what the pages say that one reads in the first hour.

Each visitor has a clone, an environment of its own, and a clean home for each page. What a page
installs is installed, by its own commands: pip builds wheels of the packages, so that nothing is
used from the tree. Then comes all that it runs, as a reader does it (tests/repo/reader.py). The
visitors come at the same time. Printed are the seconds that each page took, and how many of them it
installed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tests.repo.reader import Block, Reader

ROOT = Path(__file__).parents[2]
PAGES = {
    "torch": [
        *(
            "README.md",
            "docs/tutorials/first-run.md",
            "docs/guides/mistakes.md",
            "docs/guides/pytorch.md",
        ),
        *("docs/from-lightning.md", "docs/from-optuna.md"),
    ],
    "keras": ["docs/guides/keras.md"],
    "estimator": ["docs/guides/estimator.md"],
}
"""What each visitor reads, in order.

The guide of each framework is the one that starts from the code that one has.
"""
INSTALLS = "it installs from the network"
PATIENCE = 1800
TORCH_HOST = "download.pytorch.org"


class Newcomer(Reader):
    """Has only a clone, and an environment in it, which is kept from one page to the next."""

    def __init__(self, home: Path, clone: Path, env: dict[str, str]) -> None:
        super().__init__(home / ".det", home / "project")
        self.cwd.mkdir(parents=True)
        self.env = {**env, "HOME": str(home)}
        self._clone = clone
        self.installed = 0.0

    def skips(self, block: Block) -> None:
        """Install what a page says, in the clone, and come back."""
        if block.not_run == INSTALLS:
            before, here, self.cwd = time.monotonic(), self.cwd, self._clone
            option = f" --index-url https://{TORCH_HOST}/whl/cpu"
            self.shell(
                block.text if has_torch_index() else block.text.replace(option, ""), PATIENCE
            )
            self.cwd = here
            self.installed += time.monotonic() - before

    def checks(self, text: str) -> None:
        """Pass over fragments: they are no commands, and tests/repo/test_docs.py has read them."""


@cache
def has_torch_index() -> bool:
    """Return whether torch's own index can be reached. Otherwise the default index is used."""
    try:
        socket.create_connection((TORCH_HOST, 443), timeout=10).close()
    except OSError as error:
        print(f"{TORCH_HOST}: {error}; torch comes from the default index", flush=True)
        return False
    return True


def outside(clone: Path) -> dict[str, str]:
    """Return the environment of somebody who has never met det.

    How this machine reaches the network is not theirs to know.
    """
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("DET_", "NOX", "PYTHON", "VIRTUAL_ENV"))
    }
    ours = {str(Path(sys.prefix) / "bin"), str(Path(sys.executable).parent)}
    path = [place for place in kept["PATH"].split(os.pathsep) if place not in ours]
    home = Path.home()
    at_home = {
        "PIP_CONFIG_FILE": home / ".config/pip/pip.conf",
        "PIP_CACHE_DIR": home / ".cache/pip",
    }
    pip = {
        name: str(place) for name, place in at_home.items() if place.exists() and name not in kept
    }
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    subprocess.run([python, "-m", "venv", clone / ".venv"], check=True, env=kept)
    return {**kept, **pip, "PATH": os.pathsep.join([str(clone / ".venv/bin"), *path])}


def walk(name: str, scratch: Path) -> None:
    """Read what one visitor reads."""
    clone = scratch / name / "det"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    env = outside(clone)
    for i, page in enumerate(PAGES[name]):
        begun = time.monotonic()
        newcomer = Newcomer(scratch / name / f"home-{i}", clone, env)
        try:
            newcomer.reads(clone / page)
        finally:
            newcomer.leaves()
        env = newcomer.env
        took = time.monotonic() - begun
        print(f"{page}: {took:.0f} s, {newcomer.installed:.0f} s of them installing", flush=True)


def main(names: Sequence[str]) -> None:
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="det-newcomer-") as scratch,
        ThreadPoolExecutor() as pool,
    ):
        for walked in [pool.submit(walk, name, Path(scratch)) for name in names or PAGES]:
            walked.result()
    print(f"{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main(sys.argv[1:])

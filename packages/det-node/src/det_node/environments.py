"""Environments of experiments, which a plugin solves once and makes again on each machine.

A solved environment is a directory of files that is stored with the experiment. From it, an
environment is made in `ROOT/DIGEST-PLATFORM`. It is complete when it holds the file `ready`, which
is touched at each use.

`python3 -P -m det_node.environments MAKER DIGEST ROOT [DAYS]` makes the environment from the files
in the working directory. It also removes environments that were not used for so many days.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from det_core.errors import DetError
from det_core.hooks import Plugins
from det_core.support.installation import how_to_install

READY = "ready"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The environment that an experiment asks for.

    - `python`: a version, or the path of an interpreter.
    - `requirements`: lines, or the name of a file.
    - `directory`: the code directory.
    - `brings`: distributions of this interpreter that workers need in the environment, such as
      det-core.
    - `root`: files that can be used again are kept below it.
    - `images`: container images without GPUs and with GPUs, one of them used in place of
      requirements.
    - `container`: the program that runs an image.
    - `fetch`: pull the image again from its registry.
    - `mounts`: directories of the machine that the container sees (HOST:CONTAINER, then options).
    """

    python: str
    requirements: tuple[str, ...] | str
    directory: Path
    brings: tuple[str, ...]
    root: Path
    images: tuple[str, str] = ("", "")
    container: str = ""
    fetch: bool = False
    mounts: tuple[str, ...] = ()


class EnvironmentMaker(ABC):
    """Makes environments. Both methods raise DetError, in one line that says what to do."""

    @abstractmethod
    def solve(self, wanted: Wanted, into: Path) -> None:
        """Write into an empty directory what makes the same environment elsewhere and later."""

    @abstractmethod
    def install(self, solved: Path, into: Path) -> Path:
        """Make the environment in a new directory, and return its interpreter's path.

        It shows its progress.
        """


def maker(
    plugins: Plugins, name: str | None = None, *, images: bool = False
) -> tuple[str, EnvironmentMaker]:
    """Return the maker of that name, or the only one of its kind.

    Raises DetError where there is none.
    """
    records = {
        each.name: each for each in plugins.environments().values() if name or each.images == images
    }
    if not records or (name or next(iter(records))) not in records:
        raise DetError(
            "environment.requirements, environment.container and a version as environment.python"
            f" need det-env, which is not installed{f' on {os.uname().nodename}' if name else ''};"
            f" run: {how_to_install('det-env')}"
        )
    if name is None and len(records) > 1:
        raise DetError(
            f"{' and '.join(sorted(records))} both make environments; uninstall one of them"
        )
    name = name or next(iter(records))
    return name, records[name].load()()


def digest_of(directory: Path) -> str:
    """Return the digest of a directory's files. Their times and modes do not change it."""
    found = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.update(f"{path.relative_to(directory)}\0{digest}\n".encode())
    return found.hexdigest()


def place_of(root: Path, digest: str) -> Path:
    """Return the directory of the environment with this digest on this machine."""
    return root / f"{digest[:32]}-{sys.platform}-{platform.machine()}"


def interpreter(root: Path, digest: str) -> str | None:
    """Return the interpreter of an environment, and mark the environment as used.

    None where the environment is not complete.
    """
    place = place_of(root, digest)
    try:
        os.utime(place / READY)
        return (place / READY).read_text()
    except OSError:
        return None


def make(name: str, solved: Path, digest: str, root: Path, plugins: Plugins) -> str:
    """Make an environment unless it exists, and return its interpreter.

    Other processes that want it at that time wait.
    """
    place = place_of(root, digest)
    with locked(place):
        if found := interpreter(root, digest):
            return found
        # A process that was killed may have left a part.
        shutil.rmtree(place, ignore_errors=True)
        _, made_by = maker(plugins, name)
        python = made_by.install(solved, place)
        partial = place / f".{READY}"
        partial.write_text(str(python))
        partial.rename(place / READY)
    return str(python)


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Lock an environment against other processes that make or remove it."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        file = place.with_name(f"{place.name}.lock").open("w")
    except OSError as error:
        raise DetError(
            f"no environment can be made in {place.parent}: {error.strerror}; set DET_ENVIRONMENTS"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove(place: Path) -> bool:
    """Remove an environment unless a process runs in it. Return whether it was removed."""
    with locked(place):
        if in_use(place, Path("/proc").glob("[0-9]*")):
            return False
        with suppress(OSError):
            # From here on the environment is incomplete.
            (place / READY).unlink()
        shutil.rmtree(place, ignore_errors=True)
    return True


def in_use(place: Path, processes: Iterable[Path]) -> bool:
    """Return whether one of the processes was started from the environment."""
    begins = os.fsencode(f"{place}/")
    for process in processes:
        with suppress(OSError):
            if any(
                word.startswith(begins) for word in (process / "cmdline").read_bytes().split(b"\0")
            ):
                return True
    return False


def collect(root: Path, days: float) -> None:
    """Remove environments that were not used for so many days. They are made again when needed."""
    for ready in root.glob(f"*/{READY}"):
        with suppress(OSError, DetError):
            if time.time() - ready.stat().st_mtime > days * 86_400.0:
                remove(ready.parent)


if __name__ == "__main__":
    try:
        made = make(
            sys.argv[1],
            Path.cwd(),
            sys.argv[2],
            Path(sys.argv[3]),
            Plugins.installed(warn=lambda message: None),
        )
        sys.stdout.write(f"{made}\n")
        if len(sys.argv) > 4:
            collect(Path(sys.argv[3]), float(sys.argv[4]))
    except (DetError, OSError) as error:
        sys.exit(f"det: {error}")

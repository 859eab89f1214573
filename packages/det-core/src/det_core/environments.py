"""Environments of experiments: what a plugin solves once, and makes again on each machine, named by its content.

What was solved is a directory of files that lies with the experiment. Made again of it, an environment lies in
`ROOT/DIGEST-PLATFORM`, which is whole as soon as it holds `ready`; that file is touched whenever it is used.
`python3 -P -m det_core.environments MAKER DIGEST ROOT [DAYS]` makes the one whose files are in the working directory, and
removes those that were not used for so many days.
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

from .errors import DetError
from .plugins import Plugins

READY = "ready"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an experiment asks for: a Python (a version, or the path of an interpreter), requirements, in the code's directory.

    The requirements are lines, or the name of a file; or one of two `images` is asked for, without GPUs and with them, which
    `container` runs, anew from its registry where it is to `fetch`; `mounts` are what it sees of the machine (HOST:CONTAINER,
    then options). `brings` are the distributions of this interpreter that workers need there, as det-core. What is worth
    keeping is kept below `root`.
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
    """How environments are made; both raise DetError, in one line with the way out."""

    @abstractmethod
    def solve(self, wanted: Wanted, into: Path) -> None:
        """Write into an empty directory what it takes to make the environment again, elsewhere and later, as it is."""

    @abstractmethod
    def install(self, solved: Path, into: Path) -> Path:
        """Make the environment in a directory that is not there yet, saying how it goes; return the path of its interpreter."""


def maker(plugins: Plugins, name: str | None = None, *, images: bool = False) -> tuple[str, EnvironmentMaker]:
    """Return the maker of that name, or the only one of its kind. Raises DetError where there is none."""
    records = {each.name: each for each in plugins.environments().values() if name or each.images == images}
    if not records or (name or next(iter(records))) not in records:
        raise DetError(
            "environment.requirements, environment.container and a version as environment.python need det-env, which is not "
            f"installed{f' on {os.uname().nodename}' if name else ''}: pip install det-env (in det's tree: ./packages/det-env)"
        )
    if name is None and len(records) > 1:
        raise DetError(f"{' and '.join(sorted(records))} both make environments; uninstall one of them")
    name = name or next(iter(records))
    return name, records[name].load()()


def digest_of(directory: Path) -> str:
    """Return what is the same for the same files, whatever their times and modes are."""
    found = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found.update(f"{path.relative_to(directory)}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()


def place_of(root: Path, digest: str) -> Path:
    """Return where the environment of a digest lies on this machine."""
    return root / f"{digest[:32]}-{sys.platform}-{platform.machine()}"


def interpreter(root: Path, digest: str) -> str | None:
    """Return the interpreter of an environment that is there, whole, and note that it is used; None where it is not."""
    place = place_of(root, digest)
    try:
        os.utime(place / READY)
        return (place / READY).read_text()
    except OSError:
        return None


def make(name: str, solved: Path, digest: str, root: Path, plugins: Plugins) -> str:
    """Make an environment, unless it is there; return its interpreter. Whoever else wants it at that time waits."""
    place = place_of(root, digest)
    with locked(place):
        if found := interpreter(root, digest):
            return found
        shutil.rmtree(place, ignore_errors=True)  # what was left by one that was killed
        _, made_by = maker(plugins, name)
        python = made_by.install(solved, place)
        partial = place / f".{READY}"
        partial.write_text(str(python))
        partial.rename(place / READY)
    return str(python)


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Keep every other process away that makes or removes this environment."""
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
    """Remove an environment that no process runs in; tell whether that was so."""
    with locked(place):
        if in_use(place, Path("/proc").glob("[0-9]*")):
            return False
        with suppress(OSError):
            (place / READY).unlink()  # from here on it is none
        shutil.rmtree(place, ignore_errors=True)
    return True


def in_use(place: Path, processes: Iterable[Path]) -> bool:
    """Tell whether a process was started from there."""
    begins = os.fsencode(f"{place}/")
    for process in processes:
        with suppress(OSError):
            if any(word.startswith(begins) for word in (process / "cmdline").read_bytes().split(b"\0")):
                return True
    return False


def collect(root: Path, days: float) -> None:
    """Remove what was not used for so long: whoever wants it makes it again."""
    for ready in root.glob(f"*/{READY}"):
        with suppress(OSError, DetError):
            if time.time() - ready.stat().st_mtime > days * 86_400.0:
                remove(ready.parent)


if __name__ == "__main__":
    try:
        made = make(
            sys.argv[1], Path.cwd(), sys.argv[2], Path(sys.argv[3]), Plugins.installed(warn=lambda message: None)
        )
        sys.stdout.write(f"{made}\n")
        if len(sys.argv) > 4:
            collect(Path(sys.argv[3]), float(sys.argv[4]))
    except (DetError, OSError) as error:
        sys.exit(f"det: {error}")

"""Built wheels: a cache for environments that need the same one, and their installation."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from det_core.errors import DetError

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


class Cache:
    """A folder below `root` for each kind of wheel. A wheel in it is always complete.

    `lock` makes a second builder of the same wheel wait. A builder removes what a builder that was
    killed has left.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def usual(cls, environ: Mapping[str, str]) -> Cache:
        """Return the user's cache, in $XDG_CACHE_HOME/det/horovod or ~/.cache/det/horovod."""
        home = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
        return cls(Path(home) / "det" / "horovod")

    def wheel(self, key: str) -> Path | None:
        """Return the wheel of a key, or None if there is none that can be read."""
        found = sorted((self.root / key).glob("*.whl"))
        return found[0] if found and _is_whole(found[0]) else None

    @contextlib.contextmanager
    def lock(self, key: str, waiting: Callable[[], object]) -> Iterator[int]:
        """Hold the lock of a key, and yield its file descriptor, which the build inherits.

        `waiting` is called first if another process holds the lock.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / f"{key}.lock").open("w")
        except OSError as error:
            raise DetError(
                f"wheels cannot be kept in {self.root} ({error.strerror}); give another place with"
                " --wheel-dir"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file.fileno()

    @contextlib.contextmanager
    def workspace(self, key: str) -> Iterator[Path]:
        """Yield an empty folder for the build of a key whose lock is held."""
        folder = self.root / f"{key}.building"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, key: str, wheel: Path) -> Path:
        """Move a wheel from a workspace into the cache in one step."""
        folder, fresh = self.root / key, self.root / f"{key}.building" / "kept"
        fresh.mkdir()
        wheel.rename(fresh / wheel.name)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
        return folder / wheel.name


def _is_whole(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def commands(wheel: Path) -> tuple[list[str], ...]:
    """Return the commands that install a wheel.

    The first replaces any installed Horovod. The second installs the requirements that are missing.
    """
    return ([*_PIP, "--no-deps", "--force-reinstall", str(wheel)], [*_PIP, str(wheel)])


def install(wheel: Path) -> bool:
    """Install a wheel, and return whether that was necessary. Raises DetError with pip's output."""
    if is_installed(wheel):
        return False
    for command in commands(wheel):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise DetError(
                f"{done.stdout.strip()}\npip could not install {wheel} (status {done.returncode})"
            )
    return True


def is_installed(wheel: Path) -> bool:
    """Return whether this wheel is installed, according to its digest."""
    try:
        origin = metadata.distribution("horovod").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    known = json.loads(origin or "{}").get("archive_info", {}).get("hashes", {}).get("sha256")
    return bool(known == hashlib.sha256(wheel.read_bytes()).hexdigest())

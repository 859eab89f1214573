"""The interface of checkpoint storage, and the rules for names in it."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import StorageError

MANIFEST = "manifest.json"
"""The file that every checkpoint holds. It is published last, so the others are there before it."""

Selector = Callable[[str], bool]
"""Returns whether a file is wanted, given its relative posix name."""


class Storage(ABC):
    """A place for checkpoint directories, each under its uuid.

    File names are relative to the checkpoint, with `/` between their parts. Not every storage keeps
    directories without files. A uuid is made of at most 255 letters, digits, `-`, `_` and `.`, and
    does not begin with `.`. Every failure is a `StorageError`: a place that cannot be reached or is
    full, or a checkpoint that is absent or already there.
    """

    @abstractmethod
    def store(self, uuid: str) -> AbstractContextManager[Path]:
        """Give an empty directory to fill. Publish it under `uuid` when the body ends well.

        Otherwise discard it. The directory must hold a `manifest.json` by then.
        """

    @abstractmethod
    def restore(self, uuid: str, selector: Selector | None = None) -> AbstractContextManager[Path]:
        """Give a local directory that holds at least the selected files. It is only to be read.

        Raises StorageUnreachable if the storage goes away while the body reads.
        """

    def reading(self, uuid: str) -> AbstractContextManager[None]:
        """Convert errors of the body to StorageUnreachable if the storage went away.

        The body reads a directory that `restore` gave another process of this host.
        """
        return nullcontext()

    @abstractmethod
    def download(self, uuid: str, target: Path, selector: Selector | None = None) -> None:
        """Copy the selected files into `target`, which is made if it does not exist."""

    @abstractmethod
    def files(self, uuid: str) -> dict[str, int]:
        """Return the names of the checkpoint's files and their sizes in bytes."""

    @abstractmethod
    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        """Delete the files whose names match, and return those that are left.

        - `*` and `?` match within one part of a name, `**` matches any number of parts.
        - A checkpoint that is already gone leaves nothing.
        - If no manifest says that the directory is the checkpoint of that uuid, nothing is deleted
          and StorageError is raised.
        """

    @abstractmethod
    def list(self) -> Iterable[str]:
        """Return the sorted uuids of the complete checkpoints.

        A directory is one if its manifest has its name.
        """

    @abstractmethod
    def exists(self, uuid: str) -> bool:
        """Return whether a complete checkpoint is there under `uuid`."""

    @abstractmethod
    def url(self, uuid: str) -> str:
        """Return a location that a person can open or copy from."""

    @abstractmethod
    def begin(self, uuid: str) -> None:
        """Open a checkpoint that several processes fill. One of them calls it, before any `put`."""

    @abstractmethod
    def put(self, uuid: str, source: Path, names: Iterable[str]) -> None:
        """Add files of the directory `source`, from any process.

        They are not visible before `commit`.

        `manifest.json` comes in the last `put` of all.
        """

    @abstractmethod
    def commit(self, uuid: str) -> None:
        """Publish what was put.

        The process that called `begin` calls it after every `put` has returned.
        """

    @abstractmethod
    def abort(self, uuid: str) -> None:
        """Discard what was put. The process that called `begin` calls it."""

    @abstractmethod
    def check(self) -> None:
        """Raise StorageError if nothing can be written here."""


_UUID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
# File systems have no longer names.
_MOST_LETTERS = 255


def checked_uuid(uuid: str) -> str:
    """Return `uuid` if it can name a directory in any storage. Raises StorageError otherwise."""
    if len(uuid) > _MOST_LETTERS or not _UUID.fullmatch(uuid):
        raise StorageError(
            f"{uuid!r:.80} cannot name a checkpoint; use at most {_MOST_LETTERS} letters, digits,"
            " '-', '_' and '.', not first a '.'"
        )
    return uuid


def is_manifest_of(uuid: str, data: Any) -> bool:
    """Return whether this is the manifest of the checkpoint `uuid`."""
    try:
        document = json.loads(data)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("uuid") == uuid


def check_deletable(uuid: str, manifest: Any, where: str) -> None:
    """Raise StorageError unless a manifest says that its directory has this name and is det's.

    The names to delete come from a database, which may belong to another store. A name alone is no
    reason to delete anything.
    """
    if not is_manifest_of(uuid, manifest) and not _is_kept_apart(uuid, manifest):
        raise StorageError(
            f"{where} has no {MANIFEST} of {uuid}, so it is not deleted: if it is of no use to you,"
            " remove it yourself"
        )


def _is_kept_apart(name: str, data: Any) -> bool:
    """Return whether this manifest is of a directory of det that is not a checkpoint.

    Such a directory is never listed.
    """
    try:
        document = json.loads(data)
    except (TypeError, ValueError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    # The second form is that of older copies of event files, whose manifests have no name.
    return document.get("name") == name or (
        name.startswith("tensorboard-") and "tensorboard" in document
    )


def below(directory: Path, name: str) -> Path:
    """Return the path of the file `name` below `directory`. Raises StorageError if it leads out."""
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise StorageError(
            f"{name!r} is not a name of a file in a checkpoint; give it relative, without '..'"
        )
    return directory.joinpath(*parts)


def matching(names: Iterable[str], globs: Sequence[str]) -> list[str]:
    """Return the names that match one of the globs."""
    patterns = [glob.split("/") for glob in globs]
    return [name for name in names if any(_match(name.split("/"), pattern) for pattern in patterns)]


def _match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_match(parts[n:], pattern[1:]) for n in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _match(parts[1:], pattern[1:])

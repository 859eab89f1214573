"""What a place for checkpoints must do, and how names are read there."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import StorageError

MANIFEST = "manifest.json"
"""The file that every checkpoint holds; a storage publishes it last, so that where it is, the rest is too."""

Selector = Callable[[str], bool]
"""Says by its relative posix name whether a file is wanted."""


class Storage(ABC):
    """Where checkpoint directories live, each under its uuid.

    Names of files are relative to the checkpoint, with `/` between their parts; directories without files are not kept
    everywhere. A uuid is made of letters, digits, `-`, `_` and `.`, and does not begin with `.`. Whatever goes wrong is
    a `StorageError`: a place that cannot be reached or is full, a checkpoint that is absent or already there.
    """

    @abstractmethod
    def store(self, uuid: str) -> AbstractContextManager[Path]:
        """Give an empty directory to fill; publish it whole under `uuid` when the body ends well, else discard it.

        The directory must hold a `manifest.json` by then.
        """

    @abstractmethod
    def restore(self, uuid: str, selector: Selector | None = None) -> AbstractContextManager[Path]:
        """Give a local directory that holds at least the selected files, to be read and left unchanged."""

    @abstractmethod
    def download(self, uuid: str, target: Path, selector: Selector | None = None) -> None:
        """Copy the selected files into `target`, which is made if need be."""

    @abstractmethod
    def files(self, uuid: str) -> dict[str, int]:
        """Return the names of the checkpoint's files and their sizes in bytes."""

    @abstractmethod
    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        """Delete the files whose names match, and return what is left; one that is gone already leaves nothing.

        `*` and `?` stay within one part of a name, `**` stands for any number of parts.
        """

    @abstractmethod
    def list(self) -> Iterable[str]:
        """Return the uuids of the checkpoints that are whole, sorted: of directories whose manifest says their name."""

    @abstractmethod
    def exists(self, uuid: str) -> bool:
        """Say whether a whole checkpoint is there under `uuid`."""

    @abstractmethod
    def url(self, uuid: str) -> str:
        """Return what a person can open or copy from."""

    @abstractmethod
    def begin(self, uuid: str) -> None:
        """Open a checkpoint that several processes fill; called by one of them, before any `put`."""

    @abstractmethod
    def put(self, uuid: str, source: Path, names: Iterable[str]) -> None:
        """Add files of the directory `source`, from any process; what is added is not seen before `commit`.

        `manifest.json` goes in the last `put` of all.
        """

    @abstractmethod
    def commit(self, uuid: str) -> None:
        """Publish what was put; called by the process that called `begin`, after every `put` has returned."""

    @abstractmethod
    def abort(self, uuid: str) -> None:
        """Discard what was put; called by the process that called `begin`."""

    @abstractmethod
    def check(self) -> None:
        """Raise StorageError if nothing can be written here."""


_UUID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def checked(uuid: str) -> str:
    """Return `uuid` if it can name a directory in any storage."""
    if not _UUID.fullmatch(uuid):
        raise StorageError(f"{uuid!r} cannot name a checkpoint; use letters, digits, '-', '_' and '.', not first a '.'")
    return uuid


def is_manifest_of(uuid: str, data: Any) -> bool:
    """Tell whether this is the manifest of the checkpoint `uuid`, and not another's or none at all."""
    try:
        document = json.loads(data)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("uuid") == uuid


def below(directory: Path, name: str) -> Path:
    """Return where the file `name` lies below `directory`; a name that leads out of it is refused."""
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise StorageError(f"{name!r} is not a name of a file in a checkpoint; give it relative, without '..'")
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

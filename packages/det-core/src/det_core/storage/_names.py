"""Names: of checkpoints, and of files in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import StorageError

_UUID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def checked(uuid: str) -> str:
    """Return `uuid` if it can name a directory in any storage."""
    if not _UUID.fullmatch(uuid):
        raise StorageError(f"{uuid!r} cannot name a checkpoint; use letters, digits, '-', '_' and '.', not first a '.'")
    return uuid


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

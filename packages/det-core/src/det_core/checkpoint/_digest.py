"""The files of a directory, with their sizes and digests."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import CheckpointError
from ..manifest import METADATA, FileEntry
from ..storage import MANIFEST

_THREADS = min(4, os.cpu_count() or 1)
OWN = frozenset({MANIFEST, METADATA})


def names(directory: Path) -> list[str]:
    """Return the relative posix names of the files below `directory`, sorted.

    What Python caches when code in a checkpoint is imported (`__pycache__`) is no part of it.
    """
    found = []
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [Path(folder, name).relative_to(directory).as_posix() for name in files]
    return sorted(found)


def entries(directory: Path, wanted: Iterable[str]) -> dict[str, FileEntry]:
    """Return size and SHA-256 of the named files, each read once in big blocks, several at a time."""
    wanted = list(wanted)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(wanted, pool.map(lambda name: entry(directory / name), wanted), strict=True))


def entry(path: Path) -> FileEntry:
    """Return size and SHA-256 of one file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(size=file.tell(), digest=digest)


def settle(directory: Path) -> None:
    """Make a directory one of plain files: a link to a file becomes a copy of it, anything else is refused.

    A link would lead elsewhere, or nowhere, once the directory has been moved or uploaded.
    """
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and path.is_file():
                _copy_over(path)
            elif path.is_symlink() or not (path.is_file() or path.is_dir()):
                name = path.relative_to(directory)
                raise CheckpointError(f"{name} is neither a file nor a directory; a checkpoint holds nothing else")


def _copy_over(link: Path) -> None:
    copy = link.with_name(f"{link.name}.copy-{os.urandom(4).hex()}")
    shutil.copyfile(link, copy)
    copy.replace(link)

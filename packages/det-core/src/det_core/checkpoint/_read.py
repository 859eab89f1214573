"""Read a checkpoint, once its files prove to be what was written."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError
from ..manifest import METADATA, WAY_OUT, FileEntry, Manifest, decode
from ..storage import MANIFEST, Selector, Storage

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


@contextmanager
def read_checkpoint(storage: Storage, uuid: str, selector: Selector | None = None) -> Iterator[tuple[Path, Manifest]]:
    """Give a directory that holds the selected files, and the manifest, after comparing one with the other.

    Raises CheckpointError for a file that is missing, additional, cut short or altered. Whether the framework is the
    right one is for the caller to compare.
    """
    with storage.restore(uuid, selector and (lambda name: name == MANIFEST or selector(name))) as directory:
        manifest = _manifest(directory, uuid)
        verify_files(directory, manifest, selector)
        yield directory, manifest


def _manifest(directory: Path, uuid: str) -> Manifest:
    try:
        data = directory.joinpath(MANIFEST).read_bytes()
    except FileNotFoundError as error:
        reason = f"checkpoint {uuid} has no {MANIFEST}: it was cut short, or det did not write it"
        raise CheckpointError(f"{reason}; {WAY_OUT}") from error
    return decode(data, uuid)


def verify_files(directory: Path, manifest: Manifest, selector: Selector | None = None) -> None:
    """Raise CheckpointError unless the selected files of `directory` are those of the manifest, byte for byte."""
    expected = {name: entry for name, entry in manifest.files.items() if selector is None or selector(name)}
    present = [name for name in names(directory) if name != MANIFEST and (selector is None or selector(name))]
    if problem := _shape(directory, expected, present) or _content(directory, expected):
        raise CheckpointError(f"checkpoint {manifest.uuid}: {problem}; {WAY_OUT}")


def _shape(directory: Path, expected: Mapping[str, FileEntry], present: list[str]) -> str | None:
    """Say what is wrong as far as names and sizes tell."""
    if missing := sorted(expected.keys() - set(present)):
        return f"{missing[0]} is missing, {expected[missing[0]].size} bytes expected"
    if additional := sorted(set(present) - expected.keys()):
        return f"{additional[0]} is there, but not in {MANIFEST}"
    for name, entry in expected.items():
        size = directory.joinpath(name).stat().st_size
        if size != entry.size:
            how = "cut short" if size < entry.size else "altered"
            return f"{name} has {size} bytes, {entry.size} expected: it was {how}"
    return None


def _content(directory: Path, expected: Mapping[str, FileEntry]) -> str | None:
    """Say what is wrong as far as digests tell."""
    for name, found in entries(directory, expected).items():
        if found.digest != expected[name].digest:
            return f"{name} has the SHA-256 {found.digest}, {expected[name].digest} expected: it was altered"
    return None

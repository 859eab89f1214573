"""Writes a checkpoint, from one process or several ranks, and reads one that is intact."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..errors import CheckpointDamaged, CheckpointError
from ..storage import MANIFEST, Selector, Storage
from ..support.paths import NotRegularFile, read_regular
from ._shards import directory_id, merge_metadata, plan_shards, sources
from .manifest import (
    METADATA,
    WAY_OUT,
    FileEntry,
    Manifest,
    decode,
    draft,
    encode,
    metadata_json,
    of_plain,
)

_THREADS = min(4, os.cpu_count() or 1)
# The number of bytes from which on threads are worth their start.
_LARGE = 1 << 22
# The size of a file in bytes, below which a large buffer costs more than it saves.
_SMALL = 1 << 16
_OWN = frozenset({MANIFEST, METADATA})


def write_checkpoint(storage: Storage, write: Callable[[Path], object], **facts: Any) -> Manifest:
    """Let `write` fill a directory, add the manifest, publish it, and return the manifest.

    The `facts` are those of `manifest.draft`. The names `manifest.json` and `metadata.json` are
    det's: files of these names that `write` leaves are replaced. When anything raises, nothing is
    published.
    """
    manifest = draft(**facts)
    with storage.store(manifest.uuid) as directory:
        write(directory)
        found = entries(directory, (name for name in _replace_links(directory) if name not in _OWN))
        return _describe(directory, manifest, found)


def _describe(directory: Path, manifest: Manifest, files: Mapping[str, Any]) -> Manifest:
    """Write `metadata.json` and `manifest.json` into `directory`.

    Return the manifest with its `files`.
    """
    directory.joinpath(METADATA).write_bytes(metadata_json(manifest))
    files = dict(sorted({**files, **entries(directory, [METADATA])}.items()))
    manifest = msgspec.structs.replace(manifest, files=files)
    directory.joinpath(MANIFEST).write_bytes(encode(manifest))
    return manifest


Allgather = Callable[[Any], Sequence[Any]]
"""Gives every rank the values of all, in order of rank. The values are plain JSON."""


def write_sharded_checkpoint(
    storage: Storage,
    directory: Path | None,
    *,
    rank: int,
    allgather: Allgather,
    selector: Selector | None = None,
    **facts: Any,
) -> Manifest:
    """Publish the ranks' directories as one checkpoint, and return its manifest on every rank.

    Collective: all ranks call it, those without files with `directory=None`. The `facts`, those of
    `manifest.draft`, are rank 0's, but the ranks' metadata is merged. An error on one rank raises
    on all, and then nothing is published.
    """
    together = partial(_together, allgather)

    offered = together(
        lambda: (draft(**facts), directory and directory_id(directory), selector is not None)
    )
    offers, directories, selects = zip(*offered, strict=True)
    brings = sources(directories, selects)
    drafts = [of_plain(each) for each in offers]
    manifest = msgspec.structs.replace(
        drafts[0], metadata=merge_metadata([each.metadata for each in drafts])
    )
    claimed = together(lambda: _claim(directory, selector) if directory and brings[rank] else {})
    claims = [{name: FileEntry(**entry) for name, entry in claim.items()} for claim in claimed]
    shards = plan_shards(claims)
    files = {name: entry for claim in claims for name, entry in claim.items()}
    try:
        together(lambda: storage.begin(manifest.uuid) if rank == 0 else None)
        together(lambda: storage.put(manifest.uuid, directory, shards[rank]) if directory else None)
        finished = together(lambda: _finish(storage, manifest, files) if rank == 0 else None)
        return of_plain(finished[0])
    except BaseException:
        if rank == 0:
            storage.abort(manifest.uuid)
        raise


def _claim(directory: Path, selector: Selector | None) -> dict[str, FileEntry]:
    wanted = (name for name in _replace_links(directory) if name not in _OWN)
    return entries(directory, (name for name in wanted if selector is None or selector(name)))


def _finish(storage: Storage, manifest: Manifest, files: Mapping[str, FileEntry]) -> Manifest:
    with tempfile.TemporaryDirectory(prefix="det-manifest-") as folder:
        manifest = _describe(Path(folder), manifest, files)
        storage.put(manifest.uuid, Path(folder), [METADATA, MANIFEST])
    storage.commit(manifest.uuid)
    return manifest


def _together(allgather: Allgather, step: Callable[[], Any]) -> list[Any]:
    """Run a step on all ranks, and return the results of all as plain JSON.

    An error on one rank raises on all.
    """
    result, failure = None, None
    try:
        result = msgspec.to_builtins(step())
    # The other ranks wait for the result, so every error must reach them.
    except Exception as error:
        failure = error
    results = allgather([failure and f"{type(failure).__name__}: {failure}", result])
    if failure:
        raise failure
    for rank, (problem, _) in enumerate(results):
        if problem:
            raise CheckpointError(
                f"rank {rank} failed to write its part of the checkpoint: {problem}"
            )
    return [value for _, value in results]


@contextmanager
def read_checkpoint(
    storage: Storage, uuid: str, selector: Selector | None = None
) -> Iterator[tuple[Path, Manifest]]:
    """Give a directory that holds the selected files, and the manifest, after comparing them.

    Raises CheckpointDamaged for a file that is missing, additional, cut short or altered. The
    caller must check whether the framework is the right one.
    """
    with storage.restore(
        uuid, selector and (lambda name: name == MANIFEST or selector(name))
    ) as directory:
        manifest = _manifest(directory, uuid)
        _verify(directory, manifest, selector)
        yield directory, manifest


def read_json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object that a file of a checkpoint holds.

    Raises CheckpointError for anything else, also for a file that is not there.
    """
    try:
        found = json.loads(read_regular(file))
    except FileNotFoundError as error:
        raise CheckpointError(f"{file} is missing; the checkpoint is damaged") from error
    except NotRegularFile as error:
        raise CheckpointError(f"{file}: {error.strerror}; the checkpoint is damaged") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}; the checkpoint is damaged") from error
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{file} holds {type(found).__name__} and no JSON object; the checkpoint is damaged"
        )
    return found


def _manifest(directory: Path, uuid: str) -> Manifest:
    try:
        data = read_regular(directory / MANIFEST)
    except NotRegularFile as error:
        raise CheckpointDamaged(
            f"checkpoint {uuid}: {MANIFEST}: {error.strerror}; {WAY_OUT}"
        ) from error
    except FileNotFoundError as error:
        reason = f"checkpoint {uuid} has no {MANIFEST}: it was cut short, or det did not write it"
        raise CheckpointDamaged(f"{reason}; {WAY_OUT}") from error
    return decode(data, uuid)


def _verify(directory: Path, manifest: Manifest, selector: Selector | None = None) -> None:
    """Raise CheckpointDamaged unless the selected files equal those of the manifest.

    They are compared by size and digest.
    """
    expected = {
        name: entry for name, entry in manifest.files.items() if selector is None or selector(name)
    }
    present = [
        name
        for name in names(directory)
        if name != MANIFEST and (selector is None or selector(name))
    ]
    if problem := _shape(directory, expected, present) or _content(directory, expected):
        raise CheckpointDamaged(f"checkpoint {manifest.uuid}: {problem}; {WAY_OUT}")


def _shape(directory: Path, expected: Mapping[str, FileEntry], present: list[str]) -> str | None:
    """Return what is wrong with names and sizes, or None."""
    if missing := sorted(expected.keys() - set(present)):
        return f"{missing[0]} is missing, {expected[missing[0]].size} bytes expected"
    if additional := sorted(set(present) - expected.keys()):
        return f"{additional[0]} is there, but not in {MANIFEST}"
    for name, entry in expected.items():
        found = directory.joinpath(name).stat()
        size = found.st_size
        if not stat.S_ISREG(found.st_mode):
            return f"{name} is no regular file"
        if size != entry.size:
            how = "cut short" if size < entry.size else "altered"
            return f"{name} has {size} bytes, {entry.size} expected: it was {how}"
    return None


def _content(directory: Path, expected: Mapping[str, FileEntry]) -> str | None:
    """Return what is wrong with digests, or None."""
    for name, found in entries(directory, expected).items():
        if found.digest != expected[name].digest:
            return (
                f"{name} has the SHA-256 {found.digest}, {expected[name].digest} expected: it was"
                " altered"
            )
    return None


def names(directory: Path) -> list[str]:
    """Return the relative posix names of the files below `directory`, sorted.

    `__pycache__` is left out: Python writes it when code in a checkpoint is imported. A link to a
    directory counts as a file, as the directory's content is not in the checkpoint.
    """
    found = []
    for folder, folders, files in os.walk(directory, onerror=_raise):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if name != "__pycache__" and name not in links)
        inside = os.path.relpath(folder, directory)
        found += [name if inside == "." else f"{inside}/{name}" for name in (*files, *links)]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def entries(directory: Path, wanted: Iterable[str]) -> dict[str, FileEntry]:
    """Return size and SHA-256 of the named files. Each is read once, large ones in threads."""
    paths = {name: os.path.join(directory, name) for name in wanted}
    if sum(os.stat(path).st_size for path in paths.values()) < _LARGE:
        return {name: entry(path) for name, path in paths.items()}
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(paths, pool.map(entry, paths.values()), strict=True))


def entry(path: str | Path) -> FileEntry:
    """Return size and SHA-256 of one file."""
    with open(path, "rb", buffering=0) as file:
        data = file.read(_SMALL)
        if len(data) < _SMALL:
            return FileEntry(size=len(data), digest=hashlib.sha256(data).hexdigest())
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(size=file.tell(), digest=digest)


def _replace_links(directory: Path) -> list[str]:
    """Make a directory one of plain files, and return their `names`.

    A link to a file becomes a copy. Raises CheckpointError for anything else, as a link would break
    once the directory has been moved or uploaded.
    """
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode) and os.path.isfile(path):
                _copy_over(Path(path))
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                inside = os.path.relpath(path, directory)
                raise CheckpointError(
                    f"{inside} is neither a file nor a directory; a checkpoint holds nothing else"
                )
    return names(directory)


def _copy_over(link: Path) -> None:
    copy = link.with_name(f"{link.name}.copy-{os.urandom(4).hex()}")
    shutil.copyfile(link, copy)
    copy.replace(link)

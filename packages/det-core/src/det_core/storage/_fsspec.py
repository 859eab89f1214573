"""Checkpoint storage at any URL that fsspec supports."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import DetError, StorageError, StorageUnreachable
from . import _files
from ._base import (
    MANIFEST,
    Selector,
    Storage,
    below,
    check_deletable,
    checked_uuid,
    is_manifest_of,
    matching,
)

_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs",
    "az": "adlfs", "sftp": "paramiko", "ssh": "paramiko", "hdfs": "pyarrow",
    "webhdfs": "requests", "smb": "smbprotocol",
}  # fmt: skip
_WHOLE_OBJECTS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "obs", "memory"}
"""Protocols where a file appears whole or not at all, and directories need not be made."""
_PART = f"{MANIFEST}.part"
"""With other protocols, the manifest is moved from this name to its own.

Some file systems copy and then delete, so the manifest may not be whole while this file exists.
"""
_DELETING = f"{MANIFEST}.deleting"
"""Holds the manifest while the rest is deleted, so that an interrupted deletion can be repeated."""


class FsspecStorage(Storage):
    """Checkpoints below `url`, uploaded file by file.

    `manifest.json` comes last and marks a complete one.

    `options` go to the filesystem (credentials, endpoints). A process that is killed while it
    uploads leaves files that no `list` shows.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._scheme = url.split("://", 1)[0]
        # Without its password.
        self._shown = re.sub(r"(//[^/:@]*):[^/@]*@", r"\1@", url).rstrip("/")
        self._fs, root = _filesystem(url, self._shown, options)
        self._root = root.rstrip("/")
        self._own: set[str] = set()

    def __repr__(self) -> str:
        return f"FsspecStorage({self._shown!r})"

    @contextmanager
    def store(self, uuid: str) -> Iterator[Path]:
        self.begin(uuid)
        try:
            with _scratch(uuid) as directory:
                with _files.room(uuid, directory):
                    yield directory
                self.put(uuid, directory, _files.sizes(directory))
            self.commit(uuid)
        except BaseException:
            self.abort(uuid)
            raise

    @contextmanager
    def restore(self, uuid: str, selector: Selector | None = None) -> Iterator[Path]:
        with _scratch(uuid) as directory:
            self.download(uuid, directory, selector)
            yield directory

    def download(self, uuid: str, target: Path, selector: Selector | None = None) -> None:
        present = self.files(uuid)
        wanted = [name for name in present if selector is None or selector(name)]
        places = [below(target, name) for name in wanted]
        with _files.room(uuid, target):
            for folder in {target, *(place.parent for place in places)}:
                folder.mkdir(parents=True, exist_ok=True)
            with self._reaching("read"):
                self._fs.get(
                    [self._path(uuid, name) for name in wanted], [str(place) for place in places]
                )
            for name, place in zip(wanted, places, strict=True):
                # Not every file system raises if a connection breaks.
                if (size := place.stat().st_size) < present[name]:
                    raise StorageUnreachable(
                        f"cannot read {self._shown}: of {uuid}/{name}, {size} of {present[name]}"
                        " bytes arrived"
                    )

    def files(self, uuid: str) -> dict[str, int]:
        if found := self._files(uuid):
            return found
        raise StorageError(
            f"no checkpoint {uuid} in {self._shown}; `det checkpoint list` shows those there are"
        )

    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        if not (present := self._files(uuid)):
            return {}
        doomed = matching(present, globs)
        left = {name: size for name, size in present.items() if name not in set(doomed)}
        others = [self._path(uuid, name) for name in doomed if name not in (MANIFEST, _DELETING)]
        manifest = next((name for name in (MANIFEST, _DELETING) if name in present), None)
        with self._reaching("delete from"):
            content = self._fs.cat_file(self._path(uuid, manifest)) if manifest else None
            check_deletable(uuid, content, f"{self._shown}/{uuid}")
            if not left:
                self._fs.pipe_file(self._path(uuid, _DELETING), content)
            if MANIFEST in doomed:
                self._fs.rm_file(self._path(uuid, MANIFEST))
            if others:
                self._fs.rm(others)
            if not left:
                self._remove(uuid)
        return left

    def list(self) -> Iterable[str]:
        with self._reaching("list"):
            self._fs.invalidate_cache()
            found = {path.removeprefix(f"{self._root}/") for path in self._find(self._root)}
            uuids = (
                name.removesuffix(f"/{MANIFEST}") for name in found if name.endswith(f"/{MANIFEST}")
            )
            return self._whole(
                uuid for uuid in uuids if "/" not in uuid and f"{uuid}/{_PART}" not in found
            )

    def exists(self, uuid: str) -> bool:
        with self._reaching("read"):
            return self._is_published(uuid) and bool(self._whole([uuid]))

    def url(self, uuid: str) -> str:
        return f"{self._shown}/{checked_uuid(uuid)}"

    def begin(self, uuid: str) -> None:
        with self._reaching("read"):
            if self._is_published(uuid):
                raise StorageError(
                    f"checkpoint {uuid} is already in {self._shown}; a checkpoint is written once"
                )
        with self._reaching("write to"):
            self._remove(uuid)
        self._own.add(uuid)

    def put(self, uuid: str, source: Path, names: Iterable[str]) -> None:
        places = {name: below(source, name) for name in names}
        manifest = places.pop(MANIFEST, None)
        paths = [self._path(uuid, name) for name in places]
        with self._reaching("write to"):
            self._make({path.rpartition("/")[0] for path in paths})
            self._fs.put([str(place) for place in places.values()], paths)
        if manifest is not None:
            self._publish(uuid, manifest)

    def commit(self, uuid: str) -> None:
        with self._reaching("read"):
            if not self._is_published(uuid):
                raise StorageError(
                    f"checkpoint {uuid} was given no {MANIFEST}; write it with write_checkpoint"
                )
        self._own.discard(uuid)

    def abort(self, uuid: str) -> None:
        if uuid in self._own:
            self._own.discard(uuid)
            with suppress(StorageError), self._reaching("delete from"):
                self._remove(uuid)

    def check(self) -> None:
        probe = f"{self._root}/.check-{os.urandom(4).hex()}"
        with self._reaching("write to"):
            self._make({self._root})
            self._fs.pipe_file(probe, b"det")
            self._fs.rm_file(probe)

    def _publish(self, uuid: str, manifest: Path) -> None:
        """Upload the manifest after everything else, so that it appears whole."""
        path = self._path(uuid, MANIFEST)
        with self._reaching("write to"):
            self._make({path.rpartition("/")[0]})
            if self._scheme in _WHOLE_OBJECTS:
                self._fs.put_file(str(manifest), path)
            else:
                self._fs.put_file(str(manifest), self._path(uuid, _PART))
                self._fs.mv(self._path(uuid, _PART), path)

    def _is_published(self, uuid: str) -> bool:
        manifest, part = self._path(uuid, MANIFEST), self._path(uuid, _PART)
        self._fs.invalidate_cache()
        return self._exists(manifest) and (self._scheme in _WHOLE_OBJECTS or not self._exists(part))

    def _whole(self, uuids: Iterable[str]) -> Sequence[str]:
        """Return the uuids whose manifests are theirs, sorted.

        One that is deleted meanwhile is left out.
        """
        places = {self._path(uuid, MANIFEST): uuid for uuid in sorted(uuids)}
        read = self._fs.cat(sorted(places), on_error="return") if places else {}
        for error in (data for data in read.values() if isinstance(data, Exception)):
            if not isinstance(error, FileNotFoundError):
                raise error
        return [uuid for place, uuid in places.items() if is_manifest_of(uuid, read.get(place))]

    def _make(self, directories: Iterable[str]) -> None:
        # With object stores, this could create a bucket whose name is mistyped.
        if self._scheme not in _WHOLE_OBJECTS:
            for directory in directories:
                self._fs.makedirs(directory, exist_ok=True)

    def _remove(self, uuid: str) -> None:
        self._fs.invalidate_cache()
        if self._exists(self._path(uuid)):
            self._fs.rm(self._path(uuid), recursive=True)

    def _files(self, uuid: str) -> dict[str, int]:
        folder = self._path(uuid) + "/"
        with self._reaching("read"):
            self._fs.invalidate_cache()
            found = self._find(folder)
        sizes = {path.removeprefix(folder): int(entry["size"]) for path, entry in found.items()}
        return dict(sorted(sizes.items()))

    def _find(self, path: str) -> dict[str, Any]:
        """Return the files below `path`.

        Raises on failure, where fsspec by default returns nothing.
        """
        if self._scheme in _WHOLE_OBJECTS:
            return dict(self._fs.find(path, detail=True))
        with suppress(FileNotFoundError):
            return dict(self._fs.find(path, detail=True, on_error="raise"))
        return {}

    def _exists(self, path: str) -> bool:
        """Return whether a file or directory exists.

        Raises on failure, unlike fsspec's `exists`.
        """
        with suppress(FileNotFoundError):
            self._fs.info(path)
            return True
        return False

    def _path(self, uuid: str, *names: str) -> str:
        return "/".join((self._root, checked_uuid(uuid), *names))

    @contextmanager
    def _reaching(self, verb: str) -> Iterator[None]:
        try:
            yield
        except DetError:
            raise
        # Each file system has its own errors, without a common base.
        except Exception as error:
            raise StorageUnreachable(f"cannot {verb} {self._shown}: {_describe(error)}") from error


def _filesystem(url: str, shown: str, options: dict[str, Any]) -> tuple[Any, str]:
    fsspec: Any = import_module("fsspec.core")
    try:
        filesystem, root = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = _PACKAGES.get(url.split("://", 1)[0], "the package that fsspec names for it")
        raise StorageError(
            f"{shown} needs a package that is not installed. Try: pip install {package}"
        ) from error
    # Some file systems connect at once, and each has its own errors.
    except Exception as error:
        raise StorageUnreachable(f"cannot open {shown}: {_describe(error)}") from error
    return filesystem, root


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _scratch(uuid: str) -> Iterator[Path]:
    """Give a temporary directory. If this process is killed, a later one removes it."""
    shared = root = Path(tempfile.gettempdir(), f"det-checkpoints-{os.getuid()}")
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    # Another user may have made it, and could replace files after they are verified.
    if not _is_private(root):
        root = Path(tempfile.mkdtemp(prefix="det-checkpoints-"))
    _files.sweep(root)
    directory, lock = _files.claim(root, f"{uuid}-{os.urandom(4).hex()}")
    try:
        yield directory
    finally:
        _files.discard(root, directory)
        os.close(lock)
        if root != shared:
            shutil.rmtree(root, ignore_errors=True)


def _is_private(directory: Path) -> bool:
    """Return whether a directory belongs to this user and is closed to all others."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

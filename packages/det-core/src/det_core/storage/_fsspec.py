"""Checkpoints behind any URL that fsspec knows."""

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

from ..errors import DetError, StorageError
from . import _files
from ._base import MANIFEST, Selector, Storage, below, checked, is_manifest_of, matching

_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
    "sftp": "paramiko", "ssh": "paramiko", "hdfs": "pyarrow", "webhdfs": "requests", "smb": "smbprotocol",
}  # fmt: skip
_WHOLE_OBJECTS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "obs", "memory"}
"""Protocols where a file appears whole or not at all, and where directories need no making."""
_PART = f"{MANIFEST}.part"
"""Elsewhere the manifest is moved into its place from here. Some filesystems move by copying and then deleting, so that as
long as this is there, the manifest may not be whole."""


class FsspecStorage(Storage):
    """Checkpoints below `url`, uploaded file by file with `manifest.json` last, whose presence marks a whole one.

    `options` go to the filesystem (credentials, endpoints). A process that is killed while it uploads leaves files that
    no `list` shows; `delete` removes them.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._scheme = url.split("://", 1)[0]
        self._shown = re.sub(r"(//[^/:@]*):[^/@]*@", r"\1@", url).rstrip("/")  # without its password
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
        wanted = [name for name in self.files(uuid) if selector is None or selector(name)]
        places = [below(target, name) for name in wanted]
        with _files.room(uuid, target):
            for folder in {target, *(place.parent for place in places)}:
                folder.mkdir(parents=True, exist_ok=True)
            with self._reaching("read"):
                self._fs.get([self._path(uuid, name) for name in wanted], [str(place) for place in places])

    def files(self, uuid: str) -> dict[str, int]:
        if found := self._files(uuid):
            return found
        raise StorageError(f"no checkpoint {uuid} in {self._shown}; `det checkpoint list` shows those there are")

    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        present = self._files(uuid)
        doomed = matching(present, globs)
        with self._reaching("delete from"):
            if MANIFEST in doomed:
                self._fs.rm_file(self._path(uuid, MANIFEST))
            if len(doomed) == len(present):
                self._remove(uuid)
            elif others := [self._path(uuid, name) for name in doomed if name != MANIFEST]:
                self._fs.rm(others)
        return {name: size for name, size in present.items() if name not in set(doomed)}

    def list(self) -> Iterable[str]:
        with self._reaching("list"):
            self._fs.invalidate_cache()
            found = {path.removeprefix(f"{self._root}/") for path in self._find(self._root)}
            uuids = (name.removesuffix(f"/{MANIFEST}") for name in found if name.endswith(f"/{MANIFEST}"))
            return self._whole(uuid for uuid in uuids if "/" not in uuid and f"{uuid}/{_PART}" not in found)

    def exists(self, uuid: str) -> bool:
        with self._reaching("read"):
            return self._is_published(uuid) and bool(self._whole([uuid]))

    def url(self, uuid: str) -> str:
        return f"{self._shown}/{checked(uuid)}"

    def begin(self, uuid: str) -> None:
        with self._reaching("read"):
            if self._is_published(uuid):
                raise StorageError(f"checkpoint {uuid} is already in {self._shown}; a checkpoint is written once")
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
                raise StorageError(f"checkpoint {uuid} was given no {MANIFEST}; write it with write_checkpoint")
        self._own.discard(uuid)

    def abort(self, uuid: str) -> None:
        if uuid in self._own:
            self._own.discard(uuid)
            with suppress(StorageError):
                self.delete(uuid)

    def check(self) -> None:
        probe = f"{self._root}/.check-{os.urandom(4).hex()}"
        with self._reaching("write to"):
            self._make({self._root})
            self._fs.pipe_file(probe, b"det")
            self._fs.rm_file(probe)

    def _publish(self, uuid: str, manifest: Path) -> None:
        """Let the manifest appear whole, under its name, after everything else."""
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
        return self._is_there(manifest) and (self._scheme in _WHOLE_OBJECTS or not self._is_there(part))

    def _whole(self, uuids: Iterable[str]) -> Sequence[str]:
        """Return those whose manifests are theirs, sorted; one that is deleted meanwhile is not."""
        places = {self._path(uuid, MANIFEST): uuid for uuid in sorted(uuids)}
        read = self._fs.cat(sorted(places), on_error="return") if places else {}
        for error in (data for data in read.values() if isinstance(data, Exception)):
            if not isinstance(error, FileNotFoundError):
                raise error
        return [uuid for place, uuid in places.items() if is_manifest_of(uuid, read.get(place))]

    def _make(self, directories: Iterable[str]) -> None:
        if self._scheme not in _WHOLE_OBJECTS:  # there, making a directory would make a bucket that is mistyped
            for directory in directories:
                self._fs.makedirs(directory, exist_ok=True)

    def _remove(self, uuid: str) -> None:
        self._fs.invalidate_cache()
        if self._is_there(self._path(uuid)):
            self._fs.rm(self._path(uuid), recursive=True)

    def _files(self, uuid: str) -> dict[str, int]:
        folder = self._path(uuid) + "/"
        with self._reaching("read"):
            self._fs.invalidate_cache()
            found = self._find(folder)
        sizes = {path.removeprefix(folder): int(entry["size"]) for path, entry in found.items()}
        return dict(sorted(sizes.items()))

    def _find(self, path: str) -> dict[str, Any]:
        """Return the files below `path`; fsspec by itself would take a failure for emptiness."""
        if self._scheme in _WHOLE_OBJECTS:
            return dict(self._fs.find(path, detail=True))
        with suppress(FileNotFoundError):
            return dict(self._fs.find(path, detail=True, on_error="raise"))
        return {}

    def _is_there(self, path: str) -> bool:
        """Say whether there is a file or directory; fsspec's `exists` would take a failure for absence."""
        with suppress(FileNotFoundError):
            self._fs.info(path)
            return True
        return False

    def _path(self, uuid: str, *names: str) -> str:
        return "/".join((self._root, checked(uuid), *names))

    @contextmanager
    def _reaching(self, verb: str) -> Iterator[None]:
        try:
            yield
        except DetError:
            raise
        except Exception as error:  # each filesystem has errors of its own, without a common base
            raise StorageError(f"cannot {verb} {self._shown}: {_told(error)}") from error


def _filesystem(url: str, shown: str, options: dict[str, Any]) -> tuple[Any, str]:
    fsspec: Any = import_module("fsspec.core")
    try:
        filesystem, root = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = _PACKAGES.get(url.split("://", 1)[0], "the package that fsspec names for it")
        raise StorageError(f"{shown} needs a package that is not installed. Try: pip install {package}") from error
    except Exception as error:  # some connect at once, and each has errors of its own
        raise StorageError(f"cannot open {shown}: {_told(error)}") from error
    return filesystem, root


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _scratch(uuid: str) -> Iterator[Path]:
    """Give a temporary directory that a later process removes should this one be killed."""
    shared = root = Path(tempfile.gettempdir(), f"det-checkpoints-{os.getuid()}")
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    if not _is_private(root):  # anyone can make it there first, and swap what was verified
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
    """Tell whether a directory is this user's, and closed to all others."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

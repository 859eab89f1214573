"""A cache of data sets in a directory, built once for all processes, limited in size.

It can be shared through a storage.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..config import S3, Gcs
from ..errors import StorageError, TrialError
from ..storage import MANIFEST, Storage, open_storage, sync
from ..support.paths import expand_user
from ._records import Records, file_of, write_about, write_shard

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_DAY = 86400.0
Make = Callable[[int, int], Iterable[bytes]]


class DatasetCache:
    """Data sets in `root/NAME/VERSION`. Each appears when it is whole.

    With `limit`, in bytes, the least recently used ones are deleted for a new one, except those in
    use. With `storage`, other machines find what one machine made. Then the same name and version
    must mean the same records everywhere.
    """

    def __init__(
        self, root: str | Path, *, limit: int | None = None, storage: Storage | None = None
    ) -> None:
        self._root = expand_user(root).absolute()
        self._limit = limit
        self._storage = storage

    @classmethod
    def of(
        cls, layer: Mapping[str, Any] | None, directory: str | Path | None = None
    ) -> DatasetCache:
        """Return the cache that `data_layer` of a configuration describes.

        The default directory is `~/.cache/det/datasets`. `directory` overrides the one in `layer`.
        """
        layer = layer or {}
        configured = next(
            (
                layer[key]
                for key in ("host_storage_path", "local_cache_host_path")
                if layer.get(key)
            ),
            None,
        )
        limit, url, storage = layer.get("limit_bytes"), layer.get("url"), None
        if limit is not None and (type(limit) is not int or limit < 1):
            raise TrialError(
                f"data_layer.limit_bytes is {limit!r}; give a whole number of bytes, 1 or more"
            )
        place: dict[str, Any] = {
            "bucket": layer.get("bucket"),
            "prefix": layer.get("bucket_directory_path"),
        }
        keys: dict[str, Any] = {
            key: layer.get(key) for key in ("access_key", "secret_key", "endpoint_url")
        }
        if url is not None:
            storage = open_storage(url, "")
        elif place["bucket"] and layer.get("type") in ("s3", "gcs"):
            storage = open_storage(
                S3(**place, **keys) if layer["type"] == "s3" else Gcs(**place), ""
            )
        root = directory or configured or Path.home() / ".cache" / "det" / "datasets"
        return cls(root, limit=limit, storage=storage)

    def open(
        self, name: str, version: str, make: Make, *, kind: str = "", shards: int = 1
    ) -> Records:
        """Return the records of a name and a version. Build them if there are none.

        `make(shard, shards)` gives the records of one shard. The processes that call this build
        shards in parallel. One that has nothing to build waits. Shards that a killed process left
        are built by another. Raises TrialError where the cache holds records of another `kind`.
        """
        for what, text in (("dataset_id", name), ("dataset_version", version)):
            if not isinstance(text, str) or not _NAME.fullmatch(text):
                raise TrialError(
                    f"{what} is {text!r}; give letters, digits, '_', '-' and '.', not first a '.'"
                )
        directory = self._root / name / version
        directory.parent.mkdir(parents=True, exist_ok=True)
        uuid = f"{name}-{version}-{zlib.crc32(f'{name} {version}'.encode()):08x}"
        # Whether this process built the records.
        made = False
        while (records := self._found(directory)) is None:
            if not self._fetched(directory, uuid):
                made = True
                self._build(directory, name, make, shards)
                with _lock(directory):
                    self._publish(
                        directory, shards, uuid=uuid, name=name, version=version, kind=kind
                    )
        if records.about["kind"] != kind:
            raise TrialError(
                f"the cache of {name!r}, version {version!r}, holds other records"
                f" ({records.about['kind']}) than the function makes ({kind}); give another"
                " dataset_version"
            )
        self._offer(directory, uuid)
        if made and self._limit is not None:
            self.collect(self._limit)
        return records

    def collect(self, limit: int) -> list[Path]:
        """Delete the least recently used data sets until `limit` bytes are left.

        Return those deleted.

        Data sets in use stay. Unfinished ones that were not changed for a day are deleted, too.
        """
        for part in self._root.glob("*/.*.part"):
            with suppress(OSError):
                if (
                    time.time() - max(path.stat().st_mtime for path in (part, *part.iterdir()))
                    > _DAY
                ):
                    shutil.rmtree(part, ignore_errors=True)
        found = []
        for about in self._root.glob(f"*/*/{MANIFEST}"):
            with suppress(OSError):
                size = sum(path.stat().st_size for path in about.parent.iterdir())
                found.append((about.stat().st_mtime, about.parent, size))
        total, deleted = sum(size for _, _, size in found), []
        for _, directory, size in sorted(found):
            if total > limit and _removed(directory):
                total -= size
                deleted.append(directory)
        return deleted

    def _found(self, directory: Path) -> Records | None:
        with _lock(directory):
            if not directory.is_dir():
                return None
            records = Records(directory)
        # The file may belong to another user.
        with suppress(OSError):
            os.utime(directory / MANIFEST)
        return records

    def _build(self, directory: Path, name: str, make: Make, shards: int) -> None:
        part = _part(directory, shards)
        # First the shards that no other process builds, then those that a killed process left.
        for wait in (False, True):
            for shard in range(shards):
                with _lock(directory, f".{shard:05}", wait=wait) as held:
                    # Tested in this order, as another process may rename the first to the second at
                    # any time.
                    if (
                        held
                        and not file_of(part, shard, "json").exists()
                        and not directory.is_dir()
                    ):
                        part.mkdir(exist_ok=True)
                        try:
                            write_shard(part, shard, make(shard, shards))
                        except BaseException:
                            file_of(part, shard, "bin").unlink(missing_ok=True)
                            with suppress(OSError):
                                part.rmdir()
                            raise

    def _publish(self, directory: Path, shards: int, **about: str) -> None:
        part = _part(directory, shards)
        if directory.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        elif all(file_of(part, shard, "json").exists() for shard in range(shards)):
            try:
                write_about(part, shards, **about)
            except TrialError:
                shutil.rmtree(part, ignore_errors=True)
                raise
            part.rename(directory)
            sync(directory.parent)

    def _fetched(self, directory: Path, uuid: str) -> bool:
        """Copy a data set from the storage, and return True.

        Return False if the storage has none.
        """
        if self._storage is None or not self._storage.exists(uuid):
            return False
        with _lock(directory):
            if directory.is_dir():
                return True
            part = directory.with_name(f".{directory.name}.fetched.part")
            shutil.rmtree(part, ignore_errors=True)
            self._storage.download(uuid, part)
            Records(part).verify()
            part.rename(directory)
            sync(directory.parent)
        return True

    def _offer(self, directory: Path, uuid: str) -> None:
        """Copy a data set to the storage if it is not there.

        An upload that was killed is made again by the next call.
        """
        storage = self._storage
        if storage is None or storage.exists(uuid):
            return
        with _lock(directory, ".upload"):
            if storage.exists(uuid):
                return
            try:
                with storage.store(uuid) as target:
                    for path in directory.iterdir():
                        shutil.copyfile(path, target / path.name)
            except StorageError:
                # Otherwise another machine was faster.
                if not storage.exists(uuid):
                    raise


def _part(directory: Path, shards: int) -> Path:
    return directory.with_name(f".{directory.name}.{shards}.part")


@contextmanager
def _lock(directory: Path, what: str = "", *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock of a directory while the body runs. Yield whether it is held."""
    with directory.with_name(f".{directory.name}{what}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def _removed(directory: Path) -> bool:
    """Remove a data set that no process reads. Return whether it was removed.

    It is renamed first, so that no process sees a part of it.
    """
    with _lock(directory), suppress(OSError), (directory / MANIFEST).open("rb") as use:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        doomed = directory.with_name(f".{directory.name}.{uuid4()}.part")
        directory.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        return True
    return False

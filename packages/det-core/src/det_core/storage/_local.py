"""Checkpoint storage in a local directory, or one that several hosts mount."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import StorageError, StorageUnreachable
from ..support.paths import NotRegularFile, expand_user, read_regular
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


class LocalStorage(Storage):
    """Checkpoints in `root`, written to a staging directory, synced, and renamed.

    A process that is killed at any instant leaves a complete checkpoint or none. The next process
    that writes here removes what is unfinished.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = expand_user(root).absolute()
        # The staging directories of this process, and the descriptors that lock them.
        self._begun: dict[str, tuple[Path, int]] = {}

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.root)!r})"

    @contextmanager
    def store(self, uuid: str) -> Iterator[Path]:
        self.begin(uuid)
        staging = self._staging(uuid)
        try:
            with _files.room(uuid, staging):
                yield staging
            self.commit(uuid)
        except BaseException:
            self.abort(uuid)
            raise

    @contextmanager
    def restore(self, uuid: str, selector: Selector | None = None) -> Iterator[Path]:
        path = self._found(uuid)
        with self.reading(uuid):
            yield path

    @contextmanager
    def reading(self, uuid: str) -> Iterator[None]:
        path = self.root / checked_uuid(uuid)
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            if _files.is_outage(error, path):
                raise StorageUnreachable(self._refusal(error, "read checkpoints in")) from error
            # If the file system was unmounted, the checkpoint seems to be deleted.
            with self._looking():
                if not path.is_dir():
                    self._must_be_mounted(uuid)
            raise

    def download(self, uuid: str, target: Path, selector: Selector | None = None) -> None:
        source = self._found(uuid)
        with self.reading(uuid), _files.room(uuid, target):
            target.mkdir(parents=True, exist_ok=True)
            for name in _files.sizes(source):
                if selector is None or selector(name):
                    _files.copy(source / name, target / name)

    def files(self, uuid: str) -> dict[str, int]:
        path = self._found(uuid)
        with self._looking():
            return _files.sizes(path)

    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        path = self.root / checked_uuid(uuid)
        if not path.is_dir():
            return {}
        with self._writing(uuid):
            check_deletable(uuid, _read(path / MANIFEST), str(path))
        present = _files.sizes(path)
        doomed = set(matching(present, globs))
        with self._writing(uuid):
            if doomed == present.keys():
                _files.discard(self.root, path)
            else:
                for name in doomed:
                    (path / name).unlink(missing_ok=True)
        return {name: size for name, size in present.items() if name not in doomed}

    def list(self) -> Iterable[str]:
        with self._looking():
            if not self.root.is_dir():
                return []
            return sorted(
                path.name for path in self.root.iterdir() if path.name[0] != "." and _is_whole(path)
            )

    def exists(self, uuid: str) -> bool:
        with self._looking():
            return _is_whole(self.root / checked_uuid(uuid))

    def url(self, uuid: str) -> str:
        return str(self.root / checked_uuid(uuid))

    def begin(self, uuid: str) -> None:
        if (self.root / checked_uuid(uuid)).exists():
            raise StorageError(
                f"checkpoint {uuid} is already in {self.root}; a checkpoint is written once"
            )
        with self._writing(uuid):
            self.root.mkdir(parents=True, exist_ok=True)
            _files.sweep(self.root)
            self._begun[uuid] = _files.claim(self.root, uuid)

    def put(self, uuid: str, source: Path, names: Iterable[str]) -> None:
        staging = self._staging(uuid)
        with self._writing(uuid):
            for name in names:
                _files.copy(below(source, name), below(staging, name))

    def commit(self, uuid: str) -> None:
        staging = self._staging(uuid)
        if not (staging / MANIFEST).is_file():
            raise StorageError(
                f"checkpoint {uuid} was given no {MANIFEST}; write it with write_checkpoint"
            )
        with self._writing(uuid):
            _files.sync_tree(staging)
            staging.rename(self.root / uuid)
            _files.tidy(self.root)
            _files.sync(self.root)
        self._release(uuid)

    def abort(self, uuid: str) -> None:
        if uuid in self._begun:
            _files.discard(self.root, self._begun[uuid][0])
        self._release(uuid)

    def check(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".check-{os.urandom(4).hex()}"
            probe.write_bytes(b"det")
            probe.unlink()
        except OSError as error:
            raise StorageUnreachable(self._refusal(error)) from error

    def _found(self, uuid: str) -> Path:
        path = self.root / checked_uuid(uuid)
        with self._looking():
            if not path.is_dir():
                self._must_be_mounted(uuid)
                raise StorageError(
                    f"no checkpoint {uuid} in {self.root}; `det checkpoint list` shows those"
                    " there are"
                )
        return path

    def _must_be_mounted(self, uuid: str) -> None:
        """Raise StorageUnreachable if `root` has no checkpoint at all, as it may not be mounted."""
        if not self._has_any():
            raise StorageUnreachable(
                f"no checkpoint {uuid} in {self.root}, which holds no checkpoint at all: is it"
                " mounted?"
            )

    def _has_any(self) -> bool:
        try:
            return any(_is_whole(self.root / name) for name in os.listdir(self.root))
        except OSError:
            return False

    def _staging(self, uuid: str) -> Path:
        if uuid in self._begun:
            return self._begun[uuid][0]
        if path := _files.staged(self.root, checked_uuid(uuid)):
            return path
        raise StorageError(
            f"checkpoint {uuid} was not begun in {self.root}; begin it first, in one process"
        )

    def _release(self, uuid: str) -> None:
        if begun := self._begun.pop(uuid, None):
            os.close(begun[1])

    @contextmanager
    def _writing(self, uuid: str) -> Iterator[None]:
        try:
            with _files.room(uuid, self.root):
                yield
        except OSError as error:
            raise StorageUnreachable(self._refusal(error)) from error

    @contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageUnreachable(self._refusal(error, "read checkpoints in")) from error

    def _refusal(self, error: Exception, what: str = "write checkpoints to") -> str:
        where = getattr(error, "filename", None) or self.root
        reason = getattr(error, "strerror", None) or error
        return f"cannot {what} {self.root}: {where}: {reason}; see checkpoint_storage"


def _is_whole(path: Path) -> bool:
    return is_manifest_of(path.name, _read(path / MANIFEST))


def _read(manifest: Path) -> bytes | None:
    try:
        return read_regular(manifest)
    except (FileNotFoundError, NotADirectoryError, NotRegularFile):
        return None

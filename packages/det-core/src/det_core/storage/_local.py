"""Checkpoints in a local directory, or one that several hosts mount."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import StorageError
from . import _files
from ._base import MANIFEST, Selector, Storage, below, checked, is_manifest_of, matching


class LocalStorage(Storage):
    """Checkpoints in `root`, written in a directory apart, synced, and renamed.

    A process that is killed at any instant leaves a checkpoint whole or not at all; what it had begun is removed by the
    next one that writes here.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser().absolute()
        self._begun: dict[str, tuple[Path, int]] = {}  # what is being filled here, and the descriptor that locks it

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
        yield self._found(uuid)

    def download(self, uuid: str, target: Path, selector: Selector | None = None) -> None:
        source = self._found(uuid)
        with _files.room(uuid, target):
            target.mkdir(parents=True, exist_ok=True)
            for name in _files.sizes(source):
                if selector is None or selector(name):
                    _files.copy(source / name, target / name)

    def files(self, uuid: str) -> dict[str, int]:
        return _files.sizes(self._found(uuid))

    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        path = self.root / checked(uuid)
        if not path.is_dir():
            return {}
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
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.name[0] != "." and _is_whole(path))

    def exists(self, uuid: str) -> bool:
        return _is_whole(self.root / checked(uuid))

    def url(self, uuid: str) -> str:
        return str(self.root / checked(uuid))

    def begin(self, uuid: str) -> None:
        if (self.root / checked(uuid)).exists():
            raise StorageError(f"checkpoint {uuid} is already in {self.root}; a checkpoint is written once")
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
            raise StorageError(f"checkpoint {uuid} was given no {MANIFEST}; write it with write_checkpoint")
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
            raise StorageError(self._refusal(error)) from error

    def _found(self, uuid: str) -> Path:
        path = self.root / checked(uuid)
        if not path.is_dir():
            raise StorageError(f"no checkpoint {uuid} in {self.root}; `det checkpoint list` shows those there are")
        return path

    def _staging(self, uuid: str) -> Path:
        if uuid in self._begun:
            return self._begun[uuid][0]
        if path := _files.staged(self.root, checked(uuid)):
            return path
        raise StorageError(f"checkpoint {uuid} was not begun in {self.root}; begin it first, in one process")

    def _release(self, uuid: str) -> None:
        if begun := self._begun.pop(uuid, None):
            os.close(begun[1])

    @contextmanager
    def _writing(self, uuid: str) -> Iterator[None]:
        try:
            with _files.room(uuid, self.root):
                yield
        except OSError as error:
            raise StorageError(self._refusal(error)) from error

    def _refusal(self, error: OSError) -> str:
        where = error.filename or self.root
        return f"cannot write checkpoints to {self.root}: {where}: {error.strerror}; see checkpoint_storage"


def _is_whole(path: Path) -> bool:
    try:
        return is_manifest_of(path.name, (path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return False

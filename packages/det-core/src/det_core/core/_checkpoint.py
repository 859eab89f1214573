"""Checkpoints of scripts, as directories."""

from __future__ import annotations

import enum
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..checkpoint import (
    read_checkpoint,
    read_json_object,
    write_checkpoint,
    write_sharded_checkpoint,
)
from ..checkpoint.manifest import METADATA, Manifest, decode
from ..errors import CheckpointError
from ..ranks.distributed import DistributedContext
from ..storage import MANIFEST, Selector
from ..train import arguments as check
from ..train.environ import WorkerEnv
from ..train.host import HostLost, TrialHost
from ..train.run import read_on_host
from ..train.saving import CheckpointSink, read_back
from ._train import Steps, must_be_chief, notice_once


class DownloadMode(enum.Enum):
    """Whether the ranks of one host share a download."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Stores directories as checkpoints, each under its own uuid, and restores them.

    `metadata` is JSON. Its `steps_completed` is the position of the checkpoint. The default is the
    highest position that was reported.
    """

    def __init__(
        self,
        host: TrialHost,
        keep: CheckpointSink,
        distributed: DistributedContext,
        steps: Steps,
        env: WorkerEnv | None,
    ) -> None:
        self._host, self._keep, self._distributed, self._steps, self._env = (
            host,
            keep,
            distributed,
            steps,
            env,
        )
        # Whether the next checkpoint is read back, as the first of a trial is.
        self._reads_back = env is not None and env.check_first

    def upload(
        self,
        ckpt_dir: str | Path | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Store the files of `ckpt_dir`, or those that `selector` picks by relative name.

        Return the uuid.

        Directories without files, and links to directories, are not stored. det warns of each. With
        `shard` every rank calls it, those without files with None, and the directories become one
        checkpoint. Without it only rank 0 may.
        """
        directory = None if ckpt_dir is None else check.path("upload", "ckpt_dir", ckpt_dir)
        metadata = check.metadata("upload", metadata)
        check.function("upload", "selector", selector)
        if directory is not None and not directory.is_dir():
            raise CheckpointError(
                f"{directory} is not a directory; give the one that holds the files to store"
            )
        if shard:
            return self._sharded(directory, metadata, selector)
        must_be_chief(self._distributed.rank, "upload a checkpoint without shard=True")
        if directory is None:
            raise RuntimeError(
                "ckpt_dir is None; only ranks that upload with shard=True may have no files"
            )
        _check_names(directory, selector)
        return self._whole(lambda path: _copy(directory, path, selector), metadata)

    @contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Give an empty directory to fill and its uuid. Store it when the body ends well.

        - `metadata`: JSON, such as `{"steps_completed": 100}`.
        - `shard`: every rank calls it, and the directories become one checkpoint. Without it only
          rank 0 may.

        Directories without files, and links to directories, are not stored. det warns of each.
        Raises CheckpointError for files that det names itself, and OSError where the storage cannot
        be written.
        """
        uuid, metadata = str(uuid4()), check.metadata("store_path", metadata)
        if shard:
            uuid = self._distributed.broadcast(uuid)
        else:
            must_be_chief(self._distributed.rank, "store a checkpoint without shard=True")
        with tempfile.TemporaryDirectory(
            prefix="det-checkpoint-", ignore_cleanup_errors=True
        ) as folder:
            scratch = Path(folder)
            yield scratch, uuid
            if shard:
                self._sharded(scratch, metadata, None, uuid)
            else:
                _check_names(scratch, None)
                self._whole(lambda path: _copy(scratch, path, None), metadata, uuid)

    @contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Give a local directory with the checkpoint's verified files.

        It may be deleted afterwards.

        Every rank calls it. On each host one rank fetches and verifies the files, and each waits at
        the end until all are done. With `selector`, and with `NoSharedDownload`, each rank fetches
        for itself and may call it alone. Raises CheckpointError if there is no such checkpoint, or
        if a file is not as it was saved.
        """
        storage_id = check.text("restore_path", "storage_id", storage_id)
        check.function("restore_path", "selector", selector)
        download_mode = check.member("restore_path", "download_mode", download_mode, DownloadMode)
        with self._reading(storage_id, download_mode, selector) as (path, _):
            yield path

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | Path,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy the checkpoint's verified files into `ckpt_dir`.

        Arguments and errors are as for `restore_path`.
        """
        storage_id = check.text("download", "storage_id", storage_id)
        check.path("download", "ckpt_dir", ckpt_dir)
        check.function("download", "selector", selector)
        download_mode = check.member("download", "download_mode", download_mode, DownloadMode)
        share = download_mode is DownloadMode.LocalWorkersShareDownload and selector is None
        if not share or self._distributed.local_rank == 0:
            with read_checkpoint(self._keep.storage, storage_id, selector) as (path, _):
                _copy(path, Path(ckpt_dir), None)
        if share:
            self._distributed.barrier()

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Return the metadata that the checkpoint was stored with.

        Raises CheckpointError if they are not as they were stored.
        """
        storage_id = check.text("get_metadata", "storage_id", storage_id)
        storage = self._keep.storage
        with read_checkpoint(storage, storage_id, lambda name: name == METADATA) as (path, _):
            return read_json_object(path / METADATA)

    def delete(self, storage_id: str) -> None:
        """Delete a checkpoint. This cannot be undone. For rank 0 only.

        Raises DetError if a version of a model in the registry has it. If the driver is gone, the
        checkpoint is not deleted.
        """
        must_be_chief(self._distributed.rank, "delete a checkpoint")
        storage_id = check.text("delete", "storage_id", storage_id)
        # The driver refuses what a model needs, so ask it before the files are gone.
        try:
            self._host.deleted(storage_id)
        except HostLost:
            return
        self._keep.storage.delete(storage_id)

    def _reading(
        self, uuid: str, download_mode: DownloadMode, selector: Selector | None
    ) -> AbstractContextManager[tuple[Path, Manifest]]:
        if download_mode is DownloadMode.LocalWorkersShareDownload and selector is None:
            return read_on_host(self._distributed, self._keep.storage, uuid)
        return read_checkpoint(self._keep.storage, uuid, selector)

    def _whole(
        self,
        fill: Callable[[Path], None],
        metadata: Mapping[str, Any] | None,
        uuid: str | None = None,
    ) -> str:
        manifest = write_checkpoint(self._keep.storage, fill, uuid=uuid, **self._facts(metadata))
        # What several ranks wrote may be more than one of them can fetch, so it is not read back.
        if self._reads_back:
            read_back(self._keep.storage, manifest.uuid)
            self._reads_back = False
        self._keep.record(self._host, manifest)
        return manifest.uuid

    def _sharded(
        self,
        directory: Path | None,
        metadata: Mapping[str, Any] | None,
        selector: Selector | None,
        uuid: str | None = None,
    ) -> str:
        if directory is not None:
            _warn_of_lost(directory, selector)
        manifest = write_sharded_checkpoint(
            self._keep.storage,
            directory,
            rank=self._distributed.rank,
            allgather=self._distributed.allgather,
            uuid=uuid,
            selector=selector,
            **self._facts(metadata),
        )
        if self._distributed.rank == 0:
            self._keep.record(self._host, manifest)
        return manifest.uuid

    def _notice_order(self, position: int) -> None:
        """Say that a position is below the furthest, whose validation the checkpoint gets.

        It is no error: a script may store its best model, of an earlier position, at the end.
        """
        steps = self._steps
        furthest = max(steps.saved, steps.furthest.get("validation", 0))
        if position < furthest:
            notice_once(
                self._host,
                steps,
                f"a checkpoint is stored at position {position} after {furthest}: it counts as the"
                f" model that was validated at {position}; if it is of a further phase of the"
                " script, let that count on",
            )
        steps.saved = max(steps.saved, position)

    def _facts(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        given = dict(metadata or {})
        position = given.get("steps_completed", self._steps.completed)
        if self._distributed.rank == 0:
            self._notice_order(position)
        return {
            "framework": "",
            "batches": position,
            "experiment_id": self._env and self._env.experiment_id,
            "environment": self._env and self._env.environment,
            "commit": self._env and self._env.commit,
            "trial_id": self._env and self._env.trial_id,
            "metadata": given,
        }


def _check_names(directory: Path, selector: Selector | None) -> None:
    """Raise CheckpointError for what would be lost: files with det's names, and special files.

    A checkpoint that was fetched may be stored again. Its manifest and metadata are then rewritten.
    """
    manifest = directory / MANIFEST
    try:
        fetched = manifest.is_file() and decode(
            manifest.read_bytes(), read_json_object(manifest)["uuid"]
        )
    except (CheckpointError, LookupError):
        fetched = False
    _warn_of_lost(directory, selector)
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if selector is not None and not selector(name):
            continue
        if name in (MANIFEST, METADATA) and not fetched:
            raise CheckpointError(
                f"{name} is a file of det's own in every checkpoint; give yours another name"
            )
        if not path.is_file() and not path.is_dir():
            raise CheckpointError(
                f"{name} is neither a file nor a directory, or a link to nothing; remove it, or"
                " copy its content"
            )


def _warn_of_lost(directory: Path, selector: Selector | None) -> None:
    """Warn of directories without files, and of links to directories. Storages keep only files."""
    if selector is not None:
        return
    paths = [*directory.rglob("*")]
    kept = {parent for path in paths if not path.is_dir() for parent in path.parents}
    lost = sorted(
        path.relative_to(directory).as_posix()
        for path in paths
        if path.is_dir() and path not in kept
    )
    if lost:
        names = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        text = (
            f"not in the checkpoint: {names}; a directory is stored by the files in it, and a link"
            " to one is not followed"
        )
        warnings.warn(text, stacklevel=2)


def _copy(source: Path, target: Path, selector: Selector | None) -> None:
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source).as_posix()
        if file.is_file() and (selector is None or selector(name)):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target / name)

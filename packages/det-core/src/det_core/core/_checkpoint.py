"""Checkpoints of scripts: directories in, directories out."""

from __future__ import annotations

import enum
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..checkpoint import read_checkpoint, write_checkpoint, write_sharded_checkpoint
from ..distributed import DistributedContext
from ..environ import WorkerEnv
from ..errors import CheckpointError
from ..host import TrialHost
from ..manifest import METADATA, Manifest
from ..run import read_on_host
from ..saving import Keep
from ..storage import Selector
from ._train import Steps, must_be_chief


class DownloadMode(enum.Enum):
    """Whether the ranks of one host share a download."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Puts directories into checkpoint storage, each under a uuid of its own, and gets them back.

    `metadata` is JSON; `steps_completed` in it is the position of the checkpoint, by default the newest that was reported.
    """

    def __init__(
        self, host: TrialHost, keep: Keep, distributed: DistributedContext, steps: Steps, env: WorkerEnv | None
    ) -> None:
        self._host, self._keep, self._distributed, self._steps, self._env = host, keep, distributed, steps, env

    def upload(
        self,
        ckpt_dir: str | Path | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Store the files of `ckpt_dir`, or those that `selector` picks by their relative names; return the uuid.

        With `shard` every rank calls it, those without files with None, and the directories become one checkpoint; without,
        only rank 0 may.
        """
        directory = Path(ckpt_dir) if ckpt_dir is not None else None
        if directory is not None and not directory.is_dir():
            raise CheckpointError(f"{directory} is not a directory; give the one that holds the files to store")
        if shard:
            return self._sharded(directory, metadata, selector)
        must_be_chief(self._distributed.rank, "upload a checkpoint without shard=True")
        if directory is None:
            raise RuntimeError("ckpt_dir is None; only ranks that upload with shard=True may have no files")
        return self._whole(lambda path: _copy(directory, path, selector), metadata)

    @contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Give an empty directory to fill and the uuid that it is stored under when the body ends well."""
        uuid = str(uuid4())
        if shard:
            uuid = self._distributed.broadcast(uuid)
        else:
            must_be_chief(self._distributed.rank, "store a checkpoint without shard=True")
        with tempfile.TemporaryDirectory(prefix="det-checkpoint-", ignore_cleanup_errors=True) as folder:
            scratch = Path(folder)
            yield scratch, uuid
            if shard:
                self._sharded(scratch, metadata, None, uuid)
            else:
                self._whole(lambda path: _copy(scratch, path, None), metadata, uuid)

    @contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Give a local directory with the checkpoint's files, verified; it may be gone afterwards.

        Every rank asks for it: of those of one host one fetches and verifies it, and none is through before all are. What
        `selector` picks each fetches for itself, as it does with `NoSharedDownload`, by which one rank may ask alone.
        """
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
        """Copy the checkpoint's files into `ckpt_dir`."""
        share = download_mode is DownloadMode.LocalWorkersShareDownload and selector is None
        if not share or self._distributed.local_rank == 0:
            with read_checkpoint(self._keep.storage, storage_id, selector) as (path, _):
                _copy(path, Path(ckpt_dir), None)
        if share:
            self._distributed.barrier()

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Return the metadata that the checkpoint was stored with."""
        with self._keep.storage.restore(storage_id, lambda name: name == METADATA) as path:
            found: dict[str, Any] = json.loads((path / METADATA).read_text())
        return found

    def delete(self, storage_id: str) -> None:
        """Delete a checkpoint for good; rank 0 only."""
        must_be_chief(self._distributed.rank, "delete a checkpoint")
        self._keep.storage.delete(storage_id)
        self._host.deleted(storage_id)

    def _reading(
        self, uuid: str, download_mode: DownloadMode, selector: Selector | None
    ) -> AbstractContextManager[tuple[Path, Manifest]]:
        if download_mode is DownloadMode.LocalWorkersShareDownload and selector is None:
            return read_on_host(self._distributed, self._keep.storage, uuid)
        return read_checkpoint(self._keep.storage, uuid, selector)

    def _whole(self, fill: Callable[[Path], None], metadata: Mapping[str, Any] | None, uuid: str | None = None) -> str:
        manifest = write_checkpoint(self._keep.storage, fill, uuid=uuid, **self._facts(metadata))
        self._keep.record(self._host, manifest)
        return manifest.uuid

    def _sharded(
        self,
        directory: Path | None,
        metadata: Mapping[str, Any] | None,
        selector: Selector | None,
        uuid: str | None = None,
    ) -> str:
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

    def _facts(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        given = dict(metadata or {})
        return {
            "framework": "",
            "batches": int(given.get("steps_completed", self._steps.completed)),
            "experiment_id": self._env and self._env.experiment_id,
            "environment": self._env and self._env.environment,
            "commit": self._env and self._env.commit,
            "trial_id": self._env and self._env.trial_id,
            "metadata": given,
        }


def _copy(source: Path, target: Path, selector: Selector | None) -> None:
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source).as_posix()
        if file.is_file() and (selector is None or selector(name)):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target / name)

"""Saves the checkpoints of a run, at once or from a copy of the state while training continues."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..checkpoint import Manifest, read_checkpoint, write_checkpoint, write_sharded_checkpoint
from ..checkpoint.code import copy_code
from ..config import MASK, masked, masked_hparams, secret_masker
from ..errors import CheckpointError, StorageError
from ..storage import Storage
from ..support.paths import replace_file
from .adapter import Adapter, RunInfo
from .async_writer import AsyncCheckpointWriter, PendingSave
from .host import HostLost, TrialHost
from .loop import Progress

if TYPE_CHECKING:
    from ..hooks.records import Framework

PROGRESS_FILE = "loop.json"
LOAD_FILE = "load_data.json"


@dataclass(frozen=True, kw_only=True)
class CheckpointSink:
    """Where a run's checkpoints go: the storage, and what to do if the driver cannot record one.

    `described` is the configuration as they hold it, with its secrets masked, if it is known
    already.
    """

    storage: Storage
    described: Mapping[str, Any] | None = None
    unrecorded: Callable[[Manifest, str], None] = lambda manifest, storage: None

    def record(self, host: TrialHost, manifest: Manifest) -> bool:
        """Report a published checkpoint to the driver.

        Return whether it is recorded there by now.
        """
        url = self.storage.url(manifest.uuid)
        try:
            return host.checkpointed(manifest, url) is not False
        except HostLost:
            self.unrecorded(manifest, url)
            return False


def check_storage(storage: Storage) -> None:
    """Store 4 KiB as a checkpoint, read them back, and delete them.

    Raises what the storage raises, and StorageError for bytes that differ when they are read back.
    """
    manifest = write_checkpoint(
        storage,
        lambda path: (path / "check").write_bytes(os.urandom(4096)),
        framework="",
        batches=0,
    )
    try:
        read_back(storage, manifest.uuid)
    finally:
        # A storage may refuse to delete. That is no reason not to train.
        with suppress(Exception):
            storage.delete(manifest.uuid)


def read_back(storage: Storage, uuid: str) -> None:
    """Read a checkpoint that was just stored. Raises StorageError if it cannot be read so."""
    try:
        with read_checkpoint(storage, uuid):
            pass
    except CheckpointError as error:
        raise StorageError(
            f"the storage does not give back what was stored there: {error}; see whether its disk"
            " is sound, and that nothing else deletes or changes its files"
        ) from error


class Saving:
    """Writes, publishes and records one checkpoint. Every rank takes part, and the chief writes."""

    def __init__(
        self,
        adapter: Adapter[Any],
        framework: Framework,
        info: RunInfo,
        host: TrialHost,
        sink: CheckpointSink,
    ) -> None:
        self._adapter, self._framework, self._info, self._host, self._sink = (
            adapter,
            framework,
            info,
            host,
            sink,
        )
        self.writer = AsyncCheckpointWriter(self._take_snapshot)

    def __call__(self, progress: Progress) -> bool:
        recorded = True
        self._error: Exception | None = None
        uuid = self._info.distributed.broadcast(str(uuid4()))
        if self._adapter.sharded:
            recorded = self._publish_parts(uuid, progress)
        elif self._info.distributed.rank == 0:
            recorded = self._publish(uuid, self._write, progress)
        else:
            with TemporaryDirectory(
                prefix="det-scratch-", dir=self._info.scratch, ignore_cleanup_errors=True
            ) as path:
                self._adapter.save(Path(path))
        if self._error is not None:
            raise self._error
        self._adapter.saved(uuid)
        return recorded

    def _write(self, path: Path) -> None:
        self._adapter.save(path)
        try:
            self._adapter.written(path)
        except Exception as error:
            # The state is complete. What was trained must not be lost with a user's hook.
            self._error = error

    def _take_snapshot(self, progress: Progress) -> PendingSave | None:
        """Copy the state on every rank. None if it is not configured, or the adapter cannot."""
        if not self._info.config.optimizations.asynchronous_checkpoints:
            return None
        if (write := self._adapter.snapshot()) is None:
            return None
        distributed = self._info.distributed
        uuid = distributed.broadcast(str(uuid4()))

        def ended() -> None:
            if distributed.size > 1:
                # The chief waited for the writing, so now the checkpoint is published for all
                # ranks.
                distributed.barrier()
            self._adapter.saved(uuid)

        return PendingSave(
            lambda: distributed.rank != 0 or self._publish(uuid, write, progress), ended
        )

    def _publish(self, uuid: str, write: Callable[[Path], None], progress: Progress) -> bool:
        """Write, publish and record a checkpoint. Return whether the driver recorded it."""
        manifest = write_checkpoint(
            self._sink.storage,
            lambda path: self._fill(path, write, progress),
            **self._facts(uuid, progress),
        )
        return self._sink.record(self._host, manifest)

    def _publish_parts(self, uuid: str, progress: Progress) -> bool:
        """Publish what all ranks write as one checkpoint, and record it."""
        ranks, facts = self._info.distributed, self._facts(uuid, progress)
        with TemporaryDirectory(
            prefix="det-scratch-", dir=self._info.scratch, ignore_cleanup_errors=True
        ) as folder:
            path = Path(folder)
            if ranks.rank == 0:
                self._fill(path, self._write, progress)
            else:
                self._adapter.save(path)
            gather = ranks.allgather
            manifest = write_sharded_checkpoint(
                self._sink.storage, path, rank=ranks.rank, allgather=gather, **facts
            )
        return ranks.rank != 0 or self._sink.record(self._host, manifest)

    def _facts(self, uuid: str, progress: Progress) -> dict[str, Any]:
        return {
            "uuid": uuid,
            "framework": self._framework.name,
            "framework_version": self._adapter.framework_version,
            "batches": progress.batches,
            "experiment_id": self._info.experiment_id,
            "environment": self._info.environment,
            "commit": self._info.commit,
            "trial_id": self._info.trial_id,
        }

    def _fill(self, path: Path, write: Callable[[Path], None], progress: Progress) -> None:
        write(path)
        state = vars(progress) | {"trial_id": self._info.trial_id}
        (path / PROGRESS_FILE).write_text(json.dumps(state))
        load_data = json.dumps(self._load_data(self._sink.described or masked(self._info.config)))
        (path / LOAD_FILE).write_text(load_data)
        if self._info.code_dir is not None:
            copy_code(self._info.code_dir, path / "code")
            if MASK in load_data:
                self._blot(path / "code")

    def _blot(self, code: Path) -> None:
        """Mask the configuration's secrets in the texts that may hold them, except Python code."""
        mask = secret_masker(self._info.config)
        for file in [*code.rglob("*")]:
            if file.suffix.lower() == ".py" or not file.is_file():
                continue
            with suppress(UnicodeDecodeError):
                before = file.read_bytes().decode()
                if (after := mask(before)) != before:
                    # The copy has the file's mode, which may not let its owner write it.
                    replace_file(file, after.encode())

    def _load_data(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts that are needed to build the trial again without det's store."""
        trial = type(self._adapter.trial)
        return {
            "trial_type": self._framework.trial.partition(":")[2],
            "framework": self._framework.name,
            "trial_cls_spec": f"{trial.__module__}:{trial.__qualname__}",
            "hparams": masked_hparams(self._info.hparams, self._info.config),
            "trial_seed": self._info.seed,
            "experiment_config": config,
        }

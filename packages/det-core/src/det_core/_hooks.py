"""Registers det-core's own storages and the backend of one process, by the hooks of plugins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .hooks.hookspecs import hookimpl
from .hooks.records import StorageRecord
from .ranks.backend import BackendRecord, Serial

if TYPE_CHECKING:
    from .storage import Storage


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(name="serial", load=lambda: Serial, priority=-1)


@hookimpl
def det_storages() -> Iterator[StorageRecord]:
    for name in ("shared_fs", "directory", "s3", "gcs", "azure", "hdfs"):
        yield StorageRecord(name=name, open=_open)


def _open(config: Any, default_root: Path) -> Storage:
    from .storage import open_storage

    return open_storage(config, default_root)

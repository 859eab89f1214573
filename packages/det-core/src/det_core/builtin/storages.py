"""The types of checkpoint storage that need no plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..hookspecs import hookimpl
from ..records import StorageRecord


@hookimpl
def det_storages() -> Iterator[StorageRecord]:
    for name in ("shared_fs", "directory", "s3", "gcs", "azure", "hdfs"):
        yield StorageRecord(name=name, open=_open)


def _open(config: Any, default_root: Path) -> Any:
    from ..storage import open_storage

    return open_storage(config, default_root)

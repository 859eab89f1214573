"""What det-core brings where training runs: storages, backends and launchers, registered as strangers register theirs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from .backend import BackendRecord
from .hookspecs import hookimpl
from .records import LauncherRecord, StorageRecord

_LAUNCHERS = {
    "socket": "socket:SocketLauncher",
    "tensorflow": "tensorflow:TensorFlow",
    "torch": "torch_distributed:Torch",
}


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(name="serial", load=partial(_named, "backend:Serial"), priority=-1)
    yield BackendRecord(name="socket", load=partial(_named, "backends.socket:Socket"), priority=-1)


@hookimpl
def det_launchers() -> Iterator[LauncherRecord]:
    for name, place in _LAUNCHERS.items():
        yield LauncherRecord(name=name, load=partial(_made, f"launch.{place}"))


@hookimpl
def det_storages() -> Iterator[StorageRecord]:
    for name in ("shared_fs", "directory", "s3", "gcs", "azure", "hdfs"):
        yield StorageRecord(name=name, open=_open)


def _open(config: Any, default_root: Path) -> Any:
    return _named("storage:open_storage")(config, default_root)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"det_core.{module}"), name)


def _made(place: str) -> Any:
    return _named(place)()

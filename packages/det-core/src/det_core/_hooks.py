"""What det-core brings where training runs: storages, backends and launchers, registered as strangers register theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from .hookspecs import hookimpl
from .records import BackendRecord, LauncherRecord, StorageRecord

_LAUNCHERS = {
    "socket": "socket:SocketLauncher",
    "tensorflow": "tensorflow:TensorFlow",
    "torch": "torch_distributed:Torch",
}


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(name="serial", load=_named("backend:Serial"), priority=-1)
    yield BackendRecord(name="socket", load=_named("backends.socket:Socket"), priority=-1)


@hookimpl
def det_launchers() -> Iterator[LauncherRecord]:
    for name, place in _LAUNCHERS.items():
        yield LauncherRecord(name=name, load=_made(f"launch.{place}"))


@hookimpl
def det_storages() -> Iterator[StorageRecord]:
    for name in ("shared_fs", "directory", "s3", "gcs", "azure", "hdfs"):
        yield StorageRecord(name=name, open=_open)


def _open(config: Any, default_root: Path) -> Any:
    from .storage import open_storage

    return open_storage(config, default_root)


def _named(place: str) -> Callable[[], Any]:
    module, _, name = place.partition(":")
    return lambda: getattr(import_module(f"det_core.{module}"), name)


def _made(place: str) -> Callable[[], Any]:
    def load() -> Any:
        return _named(place)()()

    return load

"""From what a configuration says to the storage it means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import StorageError
from ._base import Storage
from ._fsspec import FsspecStorage
from ._local import LocalStorage


def open_storage(config_or_url: Any, default_root: str | Path) -> Storage:
    """Open what `checkpoint_storage` or a person names.

    A string is a local path, a `file:` URL, or any URL that fsspec knows; None is `default_root`; a struct of the
    configuration says its type by its tag. Relative paths count from the working directory.
    """
    if config_or_url is None:
        return LocalStorage(default_root)
    if isinstance(config_or_url, str | Path):
        return _from_url(str(config_or_url))
    struct = getattr(type(config_or_url), "__struct_config__", None)
    kind = getattr(struct, "tag", None)
    if kind not in _OPENERS:
        raise StorageError(f"checkpoint_storage.type {kind!r} is not one of {', '.join(sorted(_OPENERS))}")
    return _OPENERS[kind](config_or_url)


def _from_url(url: str) -> Storage:
    if url.startswith("file:"):
        return LocalStorage(unquote(urlsplit(url).path))
    return FsspecStorage(url) if "://" in url else LocalStorage(url)


def _shared_fs(config: Any) -> Storage:
    return LocalStorage(Path(config.host_path) / (config.storage_path or ""))


def _directory(config: Any) -> Storage:
    return LocalStorage(config.container_path)


def _s3(config: Any) -> Storage:
    options = {"key": config.access_key, "secret": config.secret_key, "endpoint_url": config.endpoint_url}
    return FsspecStorage(_bucket("s3", config.bucket, config.prefix), **_given(options))


def _gcs(config: Any) -> Storage:
    return FsspecStorage(_bucket("gs", config.bucket, config.prefix))


def _azure(config: Any) -> Storage:
    options = {"connection_string": config.connection_string, "credential": config.credential}
    if config.account_url:
        host = urlsplit(config.account_url).netloc or config.account_url
        options |= {"account_name": host.split(".", 1)[0], "account_host": host}
    return FsspecStorage(_bucket("abfs", config.container, None), **_given(options))


def _hdfs(config: Any) -> Storage:
    server = urlsplit(config.hdfs_url)  # Determined spoke to HDFS over HTTP, so these are WebHDFS's host and port
    options = {"user": config.user, "use_https": server.scheme == "https"}
    return FsspecStorage(f"webhdfs://{server.netloc}{config.hdfs_path}", **_given(options))


def _bucket(scheme: str, bucket: str, prefix: str | None) -> str:
    return f"{scheme}://{bucket}/{(prefix or '').strip('/')}".rstrip("/")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


_OPENERS: dict[str, Callable[[Any], Storage]] = {
    "azure": _azure,
    "directory": _directory,
    "gcs": _gcs,
    "hdfs": _hdfs,
    "s3": _s3,
    "shared_fs": _shared_fs,
}

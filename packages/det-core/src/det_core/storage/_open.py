"""Opens the storage that a configuration or a URL names."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..config import S3, STORAGES, Azure, Directory, Gcs, Hdfs, SharedFs
from ..errors import StorageError
from ._base import Storage
from ._fsspec import FsspecStorage
from ._local import LocalStorage


def open_storage(config_or_url: Any, default_root: str | Path) -> Storage:
    """Open the storage that `checkpoint_storage` or a person names.

    - A string: a local path, a `file:` URL, or any URL that fsspec supports.
    - None: `default_root`.
    - A struct of the configuration: one of det's own types.

    Relative paths start at the working directory.
    """
    match config_or_url:
        case None:
            return LocalStorage(default_root)
        case str() | Path():
            return _from_url(str(config_or_url))
        case SharedFs(host_path=root, storage_path=inner):
            return LocalStorage(Path(root) / (inner or ""))
        case Directory(container_path=path):
            return LocalStorage(path)
        case S3() as s3:
            return _remote(
                f"s3://{s3.bucket}",
                s3.prefix,
                key=s3.access_key,
                secret=s3.secret_key,
                endpoint_url=s3.endpoint_url,
            )
        case Gcs(bucket=bucket, prefix=prefix):
            return _remote(f"gs://{bucket}", prefix)
        case Azure() as azure:
            options = {"connection_string": azure.connection_string, "credential": azure.credential}
            if azure.account_url:
                host = urlsplit(azure.account_url).netloc or azure.account_url
                options |= {"account_name": host.split(".", 1)[0], "account_host": host}
            return _remote(f"abfs://{azure.container}", **options)
        case Hdfs(hdfs_url=url, hdfs_path=path, user=user):
            # Determined uses HDFS over HTTP, so these are the host and port of WebHDFS.
            server = urlsplit(url)
            return _remote(
                f"webhdfs://{server.netloc}", path, user=user, use_https=server.scheme == "https"
            )
    kind = getattr(getattr(type(config_or_url), "__struct_config__", None), "tag", None)
    raise StorageError(f"checkpoint_storage.type {kind!r} is not one of {', '.join(STORAGES)}")


def _from_url(url: str) -> Storage:
    if url.startswith("file:"):
        return LocalStorage(unquote(urlsplit(url).path))
    return FsspecStorage(url) if "://" in url else LocalStorage(url)


def _remote(place: str, path: str | None = None, **options: Any) -> Storage:
    """Open a file system with the options that are not None."""
    url = f"{place}/{(path or '').strip('/')}".rstrip("/")
    return FsspecStorage(
        url, **{name: value for name, value in options.items() if value is not None}
    )

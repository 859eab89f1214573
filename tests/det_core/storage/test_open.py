"""From what a configuration or a person says to the storage it means."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from det_core.config import Directory, SharedFs
from det_core.errors import StorageError
from det_core.storage import FsspecStorage, LocalStorage, open_storage


def test_nothing_said_is_the_default(tmp_path: Path) -> None:
    assert open_storage(None, tmp_path).url("one") == f"{tmp_path}/one"


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("/some/place", "/some/place/one"),
        (Path("/some/place"), "/some/place/one"),
        ("file:/some/my%20place", "/some/my place/one"),
        ("file:///some/place", "/some/place/one"),
        ("memory://bucket/place/", "memory://bucket/place/one"),
        (Directory(container_path="/some/place"), "/some/place/one"),
        (SharedFs(host_path="/some/place"), "/some/place/one"),
        (SharedFs(host_path="/some/place", storage_path="below/it"), "/some/place/below/it/one"),
        (
            SharedFs(host_path="/some/place", storage_path="/some/place/below"),
            "/some/place/below/one",
        ),
    ],
)
def test_what_is_said_is_opened(said: object, url: str, tmp_path: Path) -> None:
    storage = open_storage(said, tmp_path)
    assert storage.url("one") == url
    assert isinstance(storage, FsspecStorage if url.startswith("memory") else LocalStorage)


def test_a_relative_path_counts_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the time of opening; a later change of directory changes nothing."""
    monkeypatch.chdir(tmp_path)
    storage = open_storage("checkpoints", "/elsewhere")
    monkeypatch.chdir("/")
    assert storage.url("one") == f"{tmp_path}/checkpoints/one"


def test_a_type_of_a_plugin_is_not_opened_here(tmp_path: Path) -> None:
    """Its own record opens it."""

    class Tape(msgspec.Struct, tag="tape", tag_field="type"):
        pass

    message = (
        "checkpoint_storage.type 'tape' is not one of azure, directory, gcs, hdfs, s3, shared_fs"
    )
    with pytest.raises(StorageError, match=message):
        open_storage(Tape(), tmp_path)

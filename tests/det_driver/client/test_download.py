"""Checkpoints from a server that sends what no server of det sends."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from det_core.checkpoint.manifest import FileEntry, draft, encode
from det_core.errors import CheckpointError, DetError
from det_core.storage import MANIFEST
from det_driver.client._server import ServerHome, _unpack
from det_driver.remote import Lost, RemoteServer
from det_driver.store import CheckpointRow, CheckpointState

UUID = "1c3a8c1e-3f6f-4f6c-8f0e-000000000000"


def archive(names: dict[str, str]) -> io.BytesIO:
    """Return an archive with a manifest of these files, each under another name in the archive."""
    entry = FileEntry(1, "0")
    manifest = msgspec.structs.replace(
        draft(framework="script", batches=1, uuid=UUID), files=dict.fromkeys(names, entry)
    )
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w|") as tar:
        for name, content in (
            (f"{UUID}/{MANIFEST}", encode(manifest)),
            *((sent, b"x") for sent in names.values()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


def test_a_name_that_is_absolute_after_the_uuid_is_refused(tmp_path: Path) -> None:
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    with pytest.raises(DetError, match="is no name of a file below a directory"):
        _unpack(archive({str(outside): f"{UUID}/{outside}"}), UUID, scratch)
    assert not outside.exists()
    _unpack(archive({"deep/x": f"{UUID}/deep/x"}), UUID, tmp_path / "sound")
    assert (tmp_path / "sound" / UUID / "deep" / "x").read_bytes() == b"x"


@pytest.mark.parametrize("uuid", ["../../outside", "/outside", "..", "", "a/b", "a" * 256])
def test_a_uuid_that_names_no_directory_is_refused(tmp_path: Path, uuid: str) -> None:
    """Before anything is asked for or written."""
    home = ServerHome(RemoteServer("http://127.0.0.1:1"), {})
    row = CheckpointRow(
        *(uuid, 1, 1, 1, CheckpointState.COMPLETED, "{}", 1, {}, 0.0, "script", None, None)
    )
    with pytest.raises(CheckpointError, match="is no uuid of a checkpoint"):
        home.download(row, tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


class Breaking:
    """An answer whose connection breaks."""

    status = 200

    def __init__(self, error: OSError) -> None:
        self._error = error

    def read(self, size: int = -1) -> bytes:
        raise self._error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConnectionResetError(104, "reset"), Lost),
        (TimeoutError("timed out"), Lost),
        # This is about this machine, and not about the connection.
        (OSError(28, "No space left on device"), OSError),
    ],
)
def test_a_connection_that_breaks_during_a_download_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, raised: type[Exception]
) -> None:
    server = RemoteServer("http://127.0.0.1:1")
    monkeypatch.setattr(server, "_send", lambda method, path: Breaking(error))
    with pytest.raises(raised), server.stream("/checkpoint") as response:
        _unpack(response, UUID, tmp_path)

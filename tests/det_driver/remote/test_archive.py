"""Archives of code: always the same bytes, and safe to unpack."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from det_core.checkpoint.code import code_files
from det_core.errors import DetError
from det_driver.remote import _archive, pack, unpack


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    (root / "package").mkdir(parents=True)
    (root / "model_def.py").write_text("x = 1\n")
    (root / "package" / "naïve.py").write_text("")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    (root / "data.bin").write_bytes(b"data")
    (root / ".detignore").write_text("data.bin\n")
    return root


def chain(kind: bytes, size: int, times: int = 1) -> io.BytesIO:
    """Return an archive with headers of a size, one behind the other, for one file."""
    entry = tarfile.TarInfo("a")
    entry.type, entry.size = kind, size
    body = b"b\0".ljust(512, b"\0") if size <= 512 else b"a" * size
    headers = (entry.tobuf(format=tarfile.GNU_FORMAT) + body) * times
    return io.BytesIO(gzip.compress(headers + tarfile.TarInfo("q").tobuf() + bytes(1024), 1))


@pytest.mark.parametrize(
    "file",
    [
        chain(tarfile.GNUTYPE_LONGNAME, 1 << 20),
        chain(tarfile.XHDTYPE, 1 << 20),
        chain(tarfile.GNUTYPE_LONGNAME, 2, 5000),
    ],
    ids=["a long name", "a long pax header", "many names"],
)
def test_headers_that_are_long_or_many_are_refused(tmp_path: Path, file: io.BytesIO) -> None:
    with pytest.raises(DetError) as caught:
        unpack(file, tmp_path)
    assert len(str(caught.value)) < 300
    assert not list(tmp_path.iterdir())


def test_a_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DetError, match="name that is too long"):
        unpack(archive(tarfile.TarInfo("a" * 300)), tmp_path)


def packed(code: Path) -> tuple[str, bytes]:
    file = io.BytesIO()
    digest = pack(code, file)
    return digest, file.getvalue()


def archive(*entries: tarfile.TarInfo, content: bytes = b"") -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            entry.size = len(content) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(content))
    file.seek(0)
    return file


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


def test_unpacked_code_is_what_was_packed(code: Path, tmp_path: Path) -> None:
    _, data = packed(code)
    target = tmp_path / "target"
    target.mkdir()
    unpack(io.BytesIO(data), target)
    assert code_files(target) == code_files(code)
    assert not (target / "data.bin").exists()
    assert (target / "model_def.py").read_text() == "x = 1\n"
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755


def test_the_same_code_has_the_same_digest(code: Path) -> None:
    first = packed(code)
    (code / "model_def.py").write_text("x = 1\n")
    (code / "data.bin").write_bytes(b"other data, which is not code")
    assert packed(code) == first
    (code / "model_def.py").write_text("x = 2\n")
    assert packed(code)[0] != first[0]


def test_code_above_the_limit_names_it(code: Path) -> None:
    with (code / "weights").open("wb") as file:
        file.truncate(97 << 20)
    with pytest.raises(DetError, match=r"holds 97 MiB, more than 96; the largest file is weights"):
        packed(code)


def test_too_many_files_are_refused(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_archive, "MOST_FILES", 3)
    with pytest.raises(DetError, match="holds 4 files, more than 3; list what is not code"):
        packed(code)
    with pytest.raises(DetError, match="more than 96 MiB or 3 files"):
        unpack(archive(*(entry(f"{n}") for n in range(4))), code.parent / "target")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (entry("/etc/passwd"), "no name of a file below it"),
        (entry("a/../../b"), "no name of a file below it"),
        (entry(".."), "no name of a file below it"),
        (entry("."), "no name of a file below it"),
        (entry("a\nb"), "no name of a file below it"),
        (entry("link", tarfile.SYMTYPE, "/etc"), "no regular file"),
        (entry("link", tarfile.LNKTYPE, "/etc/passwd"), "no regular file"),
        (entry("disk", tarfile.BLKTYPE), "no regular file"),
        (entry("tty", tarfile.CHRTYPE), "no regular file"),
        (entry("pipe", tarfile.FIFOTYPE), "no regular file"),
    ],
)
def test_what_may_lead_outside_is_refused(tmp_path: Path, bad: tarfile.TarInfo, said: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(DetError, match=said):
        unpack(archive(bad), target)
    assert [*tmp_path.rglob("*")] == [target]


@pytest.mark.parametrize("second", ["a", "a/b"])
def test_two_entries_of_one_name_are_refused(tmp_path: Path, second: str) -> None:
    with pytest.raises(DetError, match="two entries of one name"):
        unpack(archive(entry("a"), entry(second)), tmp_path)


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    bomb = io.BytesIO()
    head = tarfile.TarInfo("zeros")
    head.size = 10 << 30
    with gzip.GzipFile(fileobj=bomb, mode="wb") as zipped:
        zipped.write(head.tobuf())
    bomb.seek(0)
    with pytest.raises(DetError, match="holds more than 96 MiB"):
        unpack(bomb, tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_bomb_in_a_header_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_archive, "MAX_ARCHIVE", 1 << 20)
    bomb = io.BytesIO()
    head = tarfile.TarInfo("header")
    head.type, head.size = tarfile.XHDTYPE, 1 << 30
    with gzip.GzipFile(fileobj=bomb, mode="wb") as zipped:
        zipped.write(head.tobuf(tarfile.GNU_FORMAT) + bytes(2 << 20))
    bomb.seek(0)
    with pytest.raises(DetError, match="that is no file"):
        unpack(bomb, tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 40])
def test_a_damaged_archive_is_refused(code: Path, tmp_path: Path, keep: int) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(DetError, match="the archive is damaged"):
        unpack(io.BytesIO(packed(code)[1][:keep] + b"x"), target)

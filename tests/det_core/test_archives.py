"""Archives of strangers.

Nothing of them lies or points outside, whatever `tarfile` does on this Python.
"""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from det_core.support.archives import check_size, check_zip, extract


def entry(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    for field, value in fields.items():
        setattr(member, field, value)
    return member, data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=0o777)


def unpack(directory: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member, data in entries:
            tar.addfile(member, io.BytesIO(data))
    packed.seek(0)
    with tarfile.open(fileobj=packed, mode="r:") as tar:
        extract(tar, directory)


HOSTILE = {
    "absolute": [entry("/ESCAPE/file", b"x")],
    "above": [entry("../file", b"x")],
    "above in the middle": [entry("a/../../file", b"x")],
    "absolute link": [link("a", "/etc/passwd")],
    "link above": [link("a/b", "../../file")],
    "link above from the root": [link("a", "..")],
    "the root as a link": [link(".", "a")],
    "through a link": [link("a", "b"), link("b", ".."), entry("a/file", b"x")],
    "hard link outside": [entry("a", type=tarfile.LNKTYPE, linkname="../../etc/passwd")],
    "hard link to a link": [link("a", "b"), entry("c", type=tarfile.LNKTYPE, linkname="a")],
    "device": [entry("a", type=tarfile.CHRTYPE)],
    "fifo": [entry("a", type=tarfile.FIFOTYPE)],
    "a file twice": [entry("a", b"1"), entry("a", b"2")],
    "a file and a link": [entry("a", b"1"), link("a", "b")],
    "the root as a file": [entry(".", b"1")],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_would_lie_or_point_outside_is_refused(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    inside = tmp_path / "in" / "deeper"
    for member, _ in entries:
        member.name = member.name.replace("/ESCAPE", str(tmp_path))
    with pytest.raises(tarfile.TarError):
        unpack(inside, *entries)
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(inside)} == {
        tmp_path / "in"
    }
    for path in inside.rglob("*"):
        assert path.resolve().is_relative_to(inside)


def test_a_file_below_a_link_is_no_file_of_where_it_leads(tmp_path: Path) -> None:
    """Links are made at the end, and a file that lies below one has its own directory by then."""
    with pytest.raises(tarfile.TarError):
        unpack(tmp_path / "in", link("a", "b"), entry("b/one", b"1"), entry("a/two", b"2"))
    assert not (tmp_path / "in" / "b" / "two").exists()


def test_a_link_through_another_one_stays_inside(tmp_path: Path) -> None:
    """`s/d` is the root, and `s/d/..` above it, if it were kept as it is written."""
    unpack(tmp_path / "in", folder("s"), link("s/d", ".."), link("x", "s/d/../file"))
    assert (tmp_path / "in" / "x").resolve().is_relative_to(tmp_path / "in")


def test_files_links_and_permissions_come_out_as_they_were(tmp_path: Path) -> None:
    unpack(
        tmp_path / "in",
        folder("code/empty"),
        entry("code/run.sh", b"echo", mode=0o4777, mtime=1000),
        entry("code/again.sh", type=tarfile.LNKTYPE, linkname="code/run.sh", mode=0o755),
        entry("code/read only", b"r", mode=0o400),
        link("code/up", "../other/file"),
        link("code/folder", "empty"),
        link("broken", "nowhere"),
        entry("other/file", b"data"),
    )
    there = tmp_path / "in"
    assert (there / "code/run.sh").stat().st_mode & 0o7777 == 0o755
    assert (there / "code/run.sh").stat().st_mtime == 1000
    assert (there / "code/again.sh").read_bytes() == b"echo"
    assert (there / "code/read only").stat().st_mode & 0o777 == 0o600
    assert (there / "code/up").read_bytes() == b"data"
    assert (there / "code/folder").is_dir()
    assert os.readlink(there / "broken") == "nowhere"


def with_checksum(head: bytearray) -> bytes:
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head[:512])
    return bytes(head)


@pytest.mark.parametrize(
    "size", [b"\x80" + b"\xff" * 11, b"\xff" * 12, b"\x80\0\0\0\x7f" + b"\xff" * 7]
)
@pytest.mark.parametrize("kind", [*b"0xgLKS5"])
def test_sizes_of_no_bounds_raise_errors_of_tars(tmp_path: Path, kind: int, size: bytes) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(entry("a", b"1")[0], io.BytesIO(b"1"))
        tar.addfile(entry("b", b"2")[0], io.BytesIO(b"2"))
    head = bytearray(packed.getvalue())
    # The header of the second file.
    head[1024 + 124 : 1024 + 136], head[1024 + 156] = size, kind
    head[1024:1536] = with_checksum(head[1024:1536])
    with (
        tarfile.open(fileobj=io.BytesIO(head), mode="r:") as tar,
        suppress(tarfile.TarError),
    ):
        extract(tar, tmp_path / "in")


def test_an_archive_of_nothing_is_an_empty_directory(tmp_path: Path) -> None:
    unpack(tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []


def test_sparse_file_far_larger_than_its_archive_is_refused(tmp_path: Path) -> None:
    headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40), "GNU.sparse.name": "a"}
    with pytest.raises(
        tarfile.TarError,
        match=r"^'a': 10,240 bytes unpack to 1,099,511,627,776, which is refused as a",
    ):
        unpack(tmp_path / "in", entry("a", b"x", pax_headers=headers))
    assert not (tmp_path / "in/a").exists()


def test_names_of_one_file_count_each(tmp_path: Path) -> None:
    names = [entry(f"b{number}", type=tarfile.LNKTYPE, linkname="a") for number in range(20)]
    unpack(tmp_path / "few", entry("a", b"x" * (4 << 20)), *names[:9])
    assert (tmp_path / "few/b8").stat().st_size == 4 << 20
    with pytest.raises(
        tarfile.TarError,
        match=r"^'b\d+': .* bytes unpack to .*, which is refused as a decompression bomb$",
    ):
        unpack(tmp_path / "in", entry("a", b"x" * (4 << 20)), *names)


@pytest.mark.parametrize("size", [1 << 20, 80 << 20])
def test_a_zip_that_unpacks_to_far_more_is_refused(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(size))
    for source in (file, io.BytesIO(file.read_bytes())):
        if size == 1 << 20:
            check_zip(source)
        else:
            with pytest.raises(
                ValueError,
                match=r"^[\d,]+ bytes unpack to 83,886,080, which is refused as a decompression",
            ):
                check_zip(source)
    file.write_bytes(b"no zip")
    check_zip(file)


def test_what_compresses_well_is_taken() -> None:
    check_size(16 << 30, 1 << 30)
    with pytest.raises(ValueError, match="bomb"):
        check_size(17 << 30, 1 << 30)

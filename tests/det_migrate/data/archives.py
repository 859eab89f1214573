"""Writes the dumps `pg-*` of this directory, of servers of PostgreSQL 10 and 14.

Run it from the root of the repository, as root, with the directories of both servers' programs and
the path of pg_dump 14:

    python3 -m tests.det_migrate.data.archives 10/bin 14/bin /14/bin/pg_dump

The dumps are pg_dump 14's. The archives that pg_dump 10 would write have format 1.13, so those of
the server 10 are rewritten to it. Format 1.14 has one field more for each entry of the table of
contents: the access method of a table.
"""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.det_migrate.eras import tables
from tests.det_migrate.test_sources import create, dump

PLACE = Path(__file__).parent
_CUSTOM = 1
_POSITION_SET = 2


class _Copier:
    """Copies the fields of a table of contents, and can leave some out."""

    def __init__(self, data: bytes) -> None:
        self.stream, self.out = io.BytesIO(data), io.BytesIO()
        self.dropped = 0
        self.positions: list[int] = []

    def raw(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.out.write(data)
        return data

    def number(self) -> int:
        sign, *digits = self.raw(5)
        return int.from_bytes(bytes(digits), "little") * (-1 if sign else 1)

    def text(self) -> bool:
        """Copy a text. Return whether there is one, as a list ends with none."""
        length = self.number()
        self.raw(max(length, 0))
        return length >= 0

    def skip_text(self) -> None:
        sign, *digits = self.stream.read(5)
        length = 0 if sign else int.from_bytes(bytes(digits), "little")
        self.stream.read(length)
        self.dropped += 5 + length


def to_format_1_13(data: bytes) -> bytes:
    """Return an archive, or the toc.dat of a directory, of format 1.14 in format 1.13."""
    copier = _Copier(data)
    assert copier.raw(5) == b"PGDMP"
    assert copier.stream.read(3) == bytes((1, 14, 0)), "the archive has another format"
    copier.out.write(bytes((1, 13, 0)))
    assert copier.raw(2) == bytes((4, 8)), "numbers have other sizes"
    is_custom = copier.raw(1)[0] == _CUSTOM
    for _ in range(8):  # the compression, and the time
        copier.number()
    for _ in range(3):  # the names of the database, its version and that of pg_dump
        copier.text()
    for _ in range(copier.number()):
        copier.number()
        copier.number()
        for _ in range(4):
            copier.text()
        copier.number()
        for _ in range(5):
            copier.text()
        copier.skip_text()
        copier.text()
        copier.text()
        while copier.text():
            pass
        if is_custom:
            copier.positions += [copier.out.tell()]
            copier.raw(9)
        else:
            copier.text()
    found = bytearray(copier.out.getvalue() + copier.stream.read())
    for at in copier.positions:
        if found[at] == _POSITION_SET:
            position = int.from_bytes(found[at + 1 : at + 9], "little") - copier.dropped
            found[at + 1 : at + 9] = position.to_bytes(8, "little")
    return bytes(found)


def write(version: str, programs: str, pg_dump: str) -> None:
    """Write the dumps of a server."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        # A server does not run as root.
        shutil.chown(place, "postgres")

        def run(*command: object, told: bytes = b"") -> None:
            words = ["runuser", "-u", "postgres", "--", *map(str, command)]
            subprocess.run(words, check=True, cwd=place, input=told, stdout=subprocess.DEVNULL)

        run(f"{programs}/initdb", "-D", place / "data", "-A", "trust", "-U", "postgres")
        options = f"-k {place} -c listen_addresses= -c timezone=Asia/Tokyo"
        control = (f"{programs}/pg_ctl", "-D", place / "data", "-l", place / "log", "-w")
        run(*control, "-o", options, "start")
        try:
            made = tables("0.38.0")
            rows = dump(made).decode().split(");\n", 1)[1]
            at = ("-h", place, "-U", "postgres")
            run("psql", "-q", "-v", "ON_ERROR_STOP=1", *at, told=(create(made) + rows).encode())
            for form in ("plain", "custom", "directory"):
                run(pg_dump, *at, f"--format={form}", "--compress=9", "-f", place / form)
        finally:
            run(*control, "-m", "immediate", "stop")
        is_old = version == "10"
        toc = place / "directory" / "toc.dat"
        for archive in (place / "custom", toc) if is_old else ():
            archive.write_bytes(to_format_1_13(archive.read_bytes()))
        plain = (place / "plain").read_bytes()
        plain = plain if plain.startswith(b"\x1f\x8b") else gzip.compress(plain, mtime=0)
        (PLACE / f"pg-{version}.sql.gz").write_bytes(plain)
        (PLACE / f"pg-{version}.dump").write_bytes((place / "custom").read_bytes())
        with tarfile.open(PLACE / f"pg-{version}-directory.tar.gz", "w:gz") as tar:
            tar.add(place / "directory", f"pg-{version}")


if __name__ == "__main__":
    write("10", sys.argv[1], sys.argv[3])
    write("14", sys.argv[2], sys.argv[3])

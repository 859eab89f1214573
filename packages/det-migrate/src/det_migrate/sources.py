"""The sources of the tables: a dump in any format of pg_dump, or a server."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from det_core.errors import DetError
from det_core.support.paths import expand_user, open_regular

from .copies import Block, read_tables
from .lines import LongLine, read_lines

_ARCHIVE, _GZIP = b"PGDMP", b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Source(Protocol):
    """Yields the blocks of tables, any number of times. `name` has no secrets."""

    name: str

    def blocks(
        self, wanted: Mapping[str, Sequence[str]], trials: set[int] | None = None
    ) -> Iterator[Block]:
        """Yield the blocks of the wanted tables, with those columns or more.

        Rows of other trials may be left out.
        """
        ...


def open_source(source: str) -> Source:
    """Return the source at an address or a path.

    Raises DetError where it is neither a server, a dump nor the directory of a dump.
    """
    if source.startswith(("postgresql://", "postgres://")):
        from .server import Server

        return Server(source)
    path = expand_user(source)
    if path.is_dir():
        if (path / "toc.dat").is_file():
            return Archive(path)
        inside = [each for each in path.iterdir() if not each.name.startswith(".")]
        if len(inside) == 1:
            return open_source(str(inside[0]))
        raise DetError(
            f"{path} is no dump: a directory that pg_dump has written holds a file toc.dat; of its"
            f" {len(inside)} files, name the one that is a dump"
        )
    try:
        with open_regular(path) as file:
            head = file.read(512)
    except OSError as error:
        raise DetError(
            f"cannot read {path}: {error.strerror}; name a file or directory that pg_dump has"
            " written"
        ) from error
    if head.startswith(_UTF_16):
        raise DetError(
            f"{path} is in UTF-16, as PowerShell writes with >; let pg_dump write it itself:"
            " pg_dump --file=determined.sql"
        )
    # A tar archive of pg_dump begins with its table of contents.
    if head.startswith((_ARCHIVE, b"toc.dat\0")):
        return Archive(path)
    return PlainDump(path, is_packed=head.startswith(_GZIP))


class PlainDump:
    """A dump in the plain format, compressed by gzip or not."""

    def __init__(self, path: Path, *, is_packed: bool) -> None:
        self.name = str(path)
        self._path = path
        self._is_packed = is_packed

    def blocks(
        self, wanted: Mapping[str, Sequence[str]], trials: set[int] | None = None
    ) -> Iterator[Block]:
        """Yield the blocks of the wanted tables, as the file has them."""
        yield from read_tables(self._lines(), wanted, self.name)

    def _lines(self) -> Iterator[bytes | LongLine]:
        try:
            with (
                gzip.open(self._path)
                if self._is_packed
                else self._path.open("rb", buffering=1 << 20)
            ) as stream:
                yield from read_lines(stream)
        except (EOFError, OSError, zlib.error) as error:
            raise DetError(
                f"cannot read {self.name} to its end: {error}; make it again with pg_dump"
            ) from error


class Archive:
    """A dump in the custom, tar or directory format, which pg_restore converts without a server."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        if shutil.which("pg_restore") is None:
            raise DetError(
                f"{path} is in a format of pg_dump that only pg_restore reads: install PostgreSQL's"
                " programs (Debian: apt-get install postgresql-client), or write it out where they"
                " are: pg_restore --file=dump.sql"
            )

    def blocks(
        self, wanted: Mapping[str, Sequence[str]], trials: set[int] | None = None
    ) -> Iterator[Block]:
        """Yield the blocks of the wanted tables. Other tables are not decompressed."""
        tables = [f"--table={table}" for table in wanted]
        command = ["pg_restore", "--data-only", *tables, "--file=-", "--", str(self._path)]
        yield from read_tables(self._lines(command), wanted, self.name)

    def _lines(self, command: Sequence[str]) -> Iterator[bytes | LongLine]:
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL
            ) as process,
        ):
            assert process.stdout is not None
            try:
                yield from read_lines(process.stdout)
                if process.wait():
                    errors.seek(0)
                    why = errors.read().decode(errors="replace").strip().splitlines() or [
                        f"status {process.returncode}"
                    ]
                    raise DetError(f"pg_restore cannot read {self.name}: {why[-1]}")
            finally:
                process.kill()

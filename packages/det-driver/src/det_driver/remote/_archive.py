"""Archives of code: the same code has the same bytes, and nothing is written outside."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from det_core.checkpoint.code import MAX_BYTES, code_files, copy_code
from det_core.errors import DetError

MOST_FILES = 20_000
_OF_ENTRY = 4096
"""The most bytes of an entry of a tar besides its content, on average."""
_LONGEST_NAME = 64 << 10
"""The most bytes of a header with a name. tarfile would hold several copies of any length."""
MAX_ARCHIVE = MAX_BYTES + MOST_FILES * _OF_ENTRY
_BLOCK = 1 << 20
_LEVEL = 6


def pack(code: Path, file: IO[bytes]) -> str:
    """Write the code of a directory to a gzipped tar, and return the SHA-256 of the file.

    It depends on the names, the content and the executable bits of the files. Raises DetError for
    more than 96 MiB or 20,000 files, and for what `copy_code` refuses.
    """
    with tempfile.TemporaryDirectory(prefix="det-code-") as scratch:
        # A copy does not change while it is read, and its size was checked.
        copy = Path(scratch) / "code"
        copy_code(code, copy)
        names = code_files(copy)
        if len(names) > MOST_FILES:
            raise DetError(
                f"the code directory {code} holds {len(names)} files, more than {MOST_FILES}; list"
                " what is not code in .detignore"
            )
        with (
            gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name in names:
                entry = tarfile.TarInfo(name.as_posix())
                status = (copy / name).stat()
                entry.size = status.st_size
                entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                with (copy / name).open("rb") as content:
                    tar.addfile(entry, content)
    file.seek(0)
    checksum = hashlib.sha256()
    while block := file.read(_BLOCK):
        checksum.update(block)
    file.seek(0)
    return checksum.hexdigest()


class _Limited(io.RawIOBase):
    """Reads a gzipped file, and fails when it holds more than `left` bytes."""

    def __init__(self, zipped: gzip.GzipFile, left: int) -> None:
        self._zipped, self._left = zipped, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._zipped.read(min(len(buffer), self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise DetError(f"the archive holds more than {MAX_BYTES >> 20} MiB")
        buffer[: len(data)] = data
        return len(data)


class _Entry(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Entry:
        entry = super().frombuf(buf, encoding, errors)
        if entry.size < 0 or (entry.type != tarfile.REGTYPE and entry.size > _LONGEST_NAME):
            raise DetError(f"the archive has an entry of {entry.size} bytes that is no file")
        return entry


def unpack(file: IO[bytes], target: Path) -> None:
    """Write the files of an archive of someone else to the empty directory `target`.

    Raises DetError for an archive that is damaged, holds more than 96 MiB or 20,000 files, or has
    anything but regular files with relative names below `target`. Raises OSError where the disk
    refuses. Then some files are written.
    """
    try:
        with gzip.GzipFile(fileobj=file) as zipped:
            limited = io.BufferedReader(_Limited(zipped, MAX_ARCHIVE), _BLOCK)
            with tarfile.open(fileobj=limited, mode="r|", tarinfo=_Entry) as tar:
                for entry, content in _checked(tar):
                    _write(target / entry.name, content, entry.mode)
    except _DAMAGED as error:
        raise DetError(f"the archive is damaged: {error}") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise DetError("the archive has two entries of one name") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise DetError("the archive has a name that is too long for this file system") from error


# Headers that follow each other are read by recursion.
_DAMAGED = (
    *(tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError),
    *(RecursionError, OverflowError),
)


def _checked(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    total = 0
    for count, entry in enumerate(tar, 1):
        name = entry.name
        if entry.type != tarfile.REGTYPE or entry.sparse is not None or entry.size < 0:
            raise DetError(f"the archive has {name!r}, which is no regular file")
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts or not name.isprintable():
            raise DetError(f"the archive has {name!r}, which is no name of a file below it")
        total += entry.size
        if total > MAX_BYTES or count > MOST_FILES:
            raise DetError(
                f"the archive holds more than {MAX_BYTES >> 20} MiB or {MOST_FILES} files"
            )
        content = tar.extractfile(entry)
        assert content is not None
        yield entry, content


def _write(place: Path, content: IO[bytes], mode: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as file:
        while block := content.read(_BLOCK):
            file.write(block)
    place.chmod(0o755 if mode & stat.S_IXUSR else 0o644)

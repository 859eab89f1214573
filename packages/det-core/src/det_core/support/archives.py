"""Unpacks archives from others safely: nothing outside the target, and no decompression bombs.

Tars are unpacked the same on every Python, as `tarfile` refuses nothing before 3.11.4.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

_FREE_BYTES, _TIMES = 64 << 20, 16
_LATEST = 2**33
_UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError),
    *(ValueError, EOFError),
)
"""The exceptions other than TarError that `tarfile` raises for malformed headers."""


def check_size(unpacked: int, packed: int) -> None:
    """Raise ValueError if `unpacked` bytes are far more than `packed`.

    No file that det writes is compressed so much.
    """
    if unpacked > max(_FREE_BYTES, _TIMES * packed):
        raise ValueError(
            f"{packed:,} bytes unpack to {unpacked:,}, which is refused as a decompression bomb"
        )


def check_zip(file: Any) -> None:
    """Raise ValueError if the members of a zip take far more bytes than it has. Other files pass.

    `file` is a path, or a stream whose position this changes.
    """
    # The module imports every compressor.
    import zipfile

    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
        packed = file.stat().st_size if isinstance(file, Path) else file.seek(0, os.SEEK_END)
        check_size(sum(member.file_size for member in members), packed)


def extract(tar: tarfile.TarFile, directory: Path) -> None:
    """Write all members of an archive below a directory, which is made.

    Writes files, directories, and links that stay inside, with the owner's permissions and the
    times of files. Raises TarError for a device, a path or a link that leads out, a name that
    occurs twice, far more bytes than the archive has, and what cannot be read. Raises OSError if
    the disk fails.
    """
    try:
        _extract(tar, directory)
    except _UNREADABLE as error:
        raise tarfile.ReadError(
            f"it cannot be read: {str(error) or type(error).__name__}"
        ) from error


def _extract(tar: tarfile.TarFile, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    links: list[tuple[Path, str]] = []
    packed, unpacked = _size(tar.fileobj), 0
    for member in tar:
        parts = _parts(member.name)
        if parts is None:
            raise tarfile.ReadError(f"{member.name!r} would lie outside")
        place = directory.joinpath(*parts)
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
        elif member.issym():
            target = os.path.normpath(member.linkname)
            up = _parts("/".join([*parts[:-1], target]))
            if not parts or target.startswith("/") or up is None:
                raise tarfile.ReadError(
                    f"the link {member.name!r} leads out, to {member.linkname!r}"
                )
            links.append((place, target))
        elif parts and (member.isreg() or member.islnk()):
            unpacked = _write(tar, member, place, unpacked, packed)
        else:
            raise tarfile.ReadError(f"{member.name!r} is neither a file nor a directory nor a link")
    for place, _ in links:
        place.parent.mkdir(parents=True, exist_ok=True)
    # Links come last, so that nothing is written through one. Each target goes up through real
    # directories only, and then down.
    for place, target in links:
        _refuse_twice(place)
        place.symlink_to(target)


def _parts(name: str) -> tuple[str, ...] | None:
    """Return the parts of a normalised relative path, or None if it leads out."""
    if name.startswith("/") or "\0" in name:
        return None
    parts = PurePosixPath(os.path.normpath(name)).parts
    return None if ".." in parts else parts


def _size(stream: Any) -> int:
    """Return the size of a stream in bytes, and restore its position."""
    position = stream.tell()
    size: int = stream.seek(0, os.SEEK_END)
    stream.seek(position)
    return size


def _write(
    tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path, before: int, packed: int
) -> int:
    """Write a file, and return `before` plus its size: the bytes unpacked so far."""
    if member.size < 0:
        raise tarfile.ReadError(f"{member.name!r} has {member.size} bytes")
    try:
        # For a hard link, this is the content of the member that it names.
        source = tar.extractfile(member)
    except KeyError:
        source = None
    if source is None:
        raise tarfile.ReadError(f"{member.name!r} is a link to no file of the archive")
    _refuse_twice(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    with source:
        unpacked = before + _size(source)
        # The holes of a sparse file, and further names of a file, take no space in the archive.
        try:
            check_size(unpacked, packed)
        except ValueError as error:
            raise tarfile.ReadError(f"{member.name!r}: {error}") from error
        with open(place, "xb") as file:
            shutil.copyfileobj(source, file)
    place.chmod(member.mode & 0o755 | 0o600)
    # A header may give any number, or none.
    mtime = member.mtime if 0 <= member.mtime <= _LATEST else 0
    os.utime(place, (mtime, mtime))
    return unpacked


def _refuse_twice(place: Path) -> None:
    if os.path.lexists(place):
        raise tarfile.ReadError(f"{place.name!r} is there twice")

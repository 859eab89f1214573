"""Files of records with numbers and checksums, and a shuffled order that needs no memory."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import sys
import weakref
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

from ..errors import TrialError
from ..storage import MANIFEST, sync

_FORMAT = 1


def file_of(directory: Path, shard: int, suffix: str) -> Path:
    """Return the path of a file of a shard.

    - `bin`: its records.
    - `index`: their ends and checksums.
    - `json`: written when both are whole.
    """
    return directory / f"{shard:05}.{suffix}"


def write_shard(directory: Path, shard: int, records: Iterable[bytes]) -> None:
    """Write records one after another, then the file that completes the shard.

    That file appears at once.
    """
    ends, sums, end = array("Q"), array("I"), 0
    with file_of(directory, shard, "bin").open("wb") as file:
        for record in records:
            file.write(record)
            end += len(record)
            ends.append(end)
            sums.append(zlib.crc32(record))
        file.flush()
        os.fsync(file.fileno())
    index = ends.tobytes() + sums.tobytes()
    _write(file_of(directory, shard, "index"), index)
    about = {"records": len(ends), "bytes": end, "index": zlib.crc32(index)}
    _write(file_of(directory, shard, "part"), json.dumps(about).encode())
    file_of(directory, shard, "part").rename(file_of(directory, shard, "json"))


def write_about(directory: Path, shards: int, **about: str) -> None:
    """Write the manifest that makes a directory of shards a data set.

    It has no times, so that the same records give the same bytes.
    """
    parts = [json.loads(file_of(directory, shard, "json").read_bytes()) for shard in range(shards)]
    document = {**about, "format": _FORMAT, "order": sys.byteorder, "shards": parts}
    document["sum"] = _sum(document)
    if not any(part["records"] for part in parts):
        raise TrialError(
            f"the dataset {about['name']!r} is empty and cannot be cached; give it a record at"
            " least"
        )
    _write(directory / MANIFEST, json.dumps(document, indent=1).encode())
    sync(directory)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync(path)


def _sum(document: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


class Records(Sequence[bytes]):
    """The records of a directory.

    The directory is not deleted while this object exists in any process.

    A record is compared with its checksum each time it is read. Raises TrialError if a file was
    altered.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        use = os.open(directory / MANIFEST, os.O_RDONLY)
        weakref.finalize(self, os.close, use)
        # The kernel releases the lock with the last descriptor, however its processes end.
        fcntl.flock(use, fcntl.LOCK_SH)
        try:
            self.about: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
            intact = self.about.pop("sum") == _sum(self.about)
        except (ValueError, KeyError, AttributeError):
            intact = False
        if not intact:
            raise self._damaged(MANIFEST)
        if (self.about["format"], self.about["order"]) != (_FORMAT, sys.byteorder):
            raise TrialError(
                f"{directory} was written by another det, or on another kind of machine; delete it,"
                " and it is built again"
            )
        shards = self.about["shards"]
        self._begins = [0, *accumulate(shard["records"] for shard in shards)]
        self._shards = [self._open(number, about) for number, about in enumerate(shards)]

    def _open(
        self, number: int, about: dict[str, int]
    ) -> tuple[memoryview, memoryview, memoryview]:
        index, data = (
            _mapped(file_of(self._directory, number, suffix)) for suffix in ("index", "bin")
        )
        if zlib.crc32(index) != about["index"]:
            raise self._damaged(file_of(self._directory, number, "index").name)
        if len(data) != about["bytes"]:
            raise self._damaged(file_of(self._directory, number, "bin").name)
        ends = 8 * about["records"]
        return index[:ends].cast("Q"), index[ends:].cast("I"), data

    def __len__(self) -> int:
        count: int = self._begins[-1]
        return count

    @overload
    def __getitem__(self, number: int) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...
    def __getitem__(self, number: int | slice) -> bytes | list[bytes]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        at = number + len(self) if number < 0 else number
        if not 0 <= at < len(self):
            raise IndexError(
                f"there is no record {number} in {self._directory}, which has {len(self)}"
            )
        shard = bisect_right(self._begins, at) - 1
        ends, sums, data = self._shards[shard]
        row = at - self._begins[shard]
        record = bytes(data[ends[row - 1] if row else 0 : ends[row]])
        if zlib.crc32(record) != sums[row]:
            raise self._damaged(f"record {at}, in {file_of(self._directory, shard, 'bin').name},")
        return record

    def verify(self) -> None:
        """Read every record. Raises TrialError if one was altered."""
        for _ in self:
            pass

    def _damaged(self, what: str) -> TrialError:
        return TrialError(
            f"{what} of the data set in {self._directory} is damaged; delete that directory, and it"
            " is built again"
        )

    def __reduce__(self) -> Any:
        return Records, (self._directory,)


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        empty = not os.fstat(file.fileno()).st_size
        return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class Shuffle(Sequence[int]):
    """The numbers below `count` in a random order, which `seed` and `epoch` determine.

    Any position is computed directly, without the others.
    """

    def __init__(self, count: int, seed: int, epoch: int = 0) -> None:
        self._count = count
        self._half = max(1, (count - 1).bit_length() + 1 >> 1)
        words = f"{seed} {epoch}".encode()
        self._keys = [zlib.crc32(words, turn) | 1 for turn in range(4)]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [self._of(each) for each in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(f"there is no place {at} in an order of {self._count}")
        return self._of(at % self._count)

    def __iter__(self) -> Iterator[int]:
        return map(self._of, range(self._count))

    def _of(self, number: int) -> int:
        """Permute a number by a Feistel network on 2 * half bits.

        A result of `count` or more is permuted again until it is below (cycle walking).
        """
        half, mask = self._half, (1 << self._half) - 1
        while True:
            left, right = number >> half, number & mask
            for key in self._keys:
                mixed = (right + key) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
                mixed = (mixed ^ mixed >> 29) * (key << 1 | 1) & 0xFFFFFFFFFFFFFFFF
                left, right = right, left ^ (mixed >> 32 & mask)
            number = left << half | right
            if number < self._count:
                return number

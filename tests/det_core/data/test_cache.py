"""Data sets that many processes ask for at once.

Built once, whole or not there, found damaged, collected, shared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from det_core import TrialError
from det_core.data import DatasetCache, Records
from det_core.storage import MANIFEST, FsspecStorage, LocalStorage

BUILDER = """
import os, sys, time
from pathlib import Path
from det_core.data import DatasetCache

root, shards, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


def make(shard, count):
    with (root / "made").open("a") as file:
        file.write(f"{shard} {os.getpid()}\\n")
    for n in range(1000 * shard // count, 1000 * (shard + 1) // count):
        time.sleep(pause)
        yield b"%d" % n * (n % 7)


records = DatasetCache(root / "cache").open("numbers", "1", make, shards=shards)
records.verify()
print(len(records), sum(len(record) for record in records), flush=True)
"""
WHOLE = f"1000 {sum(len(str(n)) * (n % 7) for n in range(1000))}"


def start(root: Path, shards: int = 1, pause: float = 0.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(root), str(shards), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    return out.strip() or err


def made(root: Path) -> list[list[str]]:
    return [line.split() for line in (root / "made").read_text().splitlines()]


def letters(*_: int) -> Iterable[bytes]:
    return (bytes([n]) * n for n in range(1, 50))


def never(*_: int) -> Iterable[bytes]:
    raise AssertionError("was made again")


@pytest.mark.process
@pytest.mark.parametrize("shards", [1, 4])
def test_eight_processes_at_once_build_it_once(tmp_path: Path, shards: int) -> None:
    builders = [start(tmp_path, shards, 0.0005) for _ in range(8)]
    assert [outcome(each) for each in builders] == [WHOLE] * 8
    assert sorted(shard for shard, _ in made(tmp_path)) == [str(n) for n in range(shards)]
    assert [path.name for path in (tmp_path / "cache" / "numbers").iterdir() if path.is_dir()] == [
        "1"
    ]


@pytest.mark.process
def test_processes_build_the_shards_side_by_side(tmp_path: Path) -> None:
    builders = [start(tmp_path, 8, 0.002) for _ in range(2)]
    assert [outcome(each) for each in builders] == [WHOLE] * 2
    assert len({pid for _, pid in made(tmp_path)}) == 2


@pytest.mark.process
@pytest.mark.parametrize("shards", [1, 4])
def test_one_that_is_killed_while_it_builds_breaks_nothing(tmp_path: Path, shards: int) -> None:
    killed, waiting = start(tmp_path, shards, 0.001), None
    while not (tmp_path / "made").exists() or len(made(tmp_path)) < min(shards, 3):
        time.sleep(0.01)
    waiting = start(tmp_path, shards, 0.0)
    time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert outcome(waiting) == WHOLE
    assert outcome(start(tmp_path, shards)) == WHOLE
    again = [shard for shard, _ in made(tmp_path)]
    assert len(again) <= shards + 1  # what was whole was not made again
    assert not list((tmp_path / "cache" / "numbers").glob("*.part"))


@pytest.mark.parametrize("name", ["00000.bin", "00000.index", MANIFEST])
def test_a_flipped_byte_is_found(tmp_path: Path, name: str) -> None:
    cache = DatasetCache(tmp_path)
    cache.open("letters", "1", letters)
    path = tmp_path / "letters" / "1" / name
    data = bytearray(path.read_bytes())
    for at in (0, len(data) // 2, len(data) - 2):
        flipped = data.copy()
        flipped[at] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(
            TrialError, match=r"of the data set in .*/letters/1 is damaged; delete that directory"
        ):
            cache.open("letters", "1", never).verify()


def test_a_record_is_found_by_its_number_in_any_shard(tmp_path: Path) -> None:
    sizes = [3, 0, 2]
    records = DatasetCache(tmp_path).open(
        "n", "1", lambda k, _: [b"%d%d" % (k, n) for n in range(sizes[k])], shards=3
    )
    assert list(records) == [b"00", b"01", b"02", b"20", b"21"]
    assert (records[-1], records[1:4]) == (b"21", [b"01", b"02", b"20"])
    with pytest.raises(IndexError, match="there is no record 5 in"):
        records[5]


@pytest.mark.parametrize(
    ("name", "version", "make", "message"),
    [
        ("../e", "1", letters, r"dataset_id is '../e'; give letters"),
        ("e", ".1", letters, r"dataset_version is '.1'; give letters"),
        ("e", "1", lambda *_: [], r"'e' is empty and cannot be cached; give it a record at least"),
    ],
)
def test_what_cannot_be_cached_is_said(
    tmp_path: Path, name: str, version: str, make: Any, message: str
) -> None:
    with pytest.raises(TrialError, match=message):
        DatasetCache(tmp_path).open(name, version, make)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_records_of_another_kind_are_refused(tmp_path: Path) -> None:
    DatasetCache(tmp_path).open("d", "1", letters, kind="text")
    with pytest.raises(
        TrialError,
        match=r"holds other records \(text\) than the function makes \(numbers\); give another",
    ):
        DatasetCache(tmp_path).open("d", "1", letters, kind="numbers")


def test_least_recently_used_data_set_is_evicted_unless_in_use(tmp_path: Path) -> None:
    size = 0
    held = {}
    for at, name in enumerate("abcd"):
        records = DatasetCache(tmp_path).open(name, "1", letters)
        if name == "a":
            held[name] = records
        del records
        size = sum(path.stat().st_size for path in (tmp_path / name / "1").iterdir())
        os.utime(tmp_path / name / "1" / MANIFEST, (at, at))
    DatasetCache(tmp_path).open("b", "1", never)
    held["e"] = DatasetCache(tmp_path, limit=3 * size).open("e", "1", letters)
    assert sorted(path.parent.name for path in tmp_path.glob("*/1")) == ["a", "b", "e"]
    assert len(held["a"]) == 49
    held.clear()
    assert len(DatasetCache(tmp_path).collect(0)) == 3


def test_what_was_begun_and_left_is_collected_after_a_day(tmp_path: Path) -> None:
    for name, age in (("old", 90000), ("new", 0)):
        part = tmp_path / "d" / f".{name}.1.part"
        part.mkdir(parents=True)
        (part / "00000.bin").write_bytes(b"x")
        for path in (part / "00000.bin", part):
            os.utime(path, (time.time() - age,) * 2)
    DatasetCache(tmp_path).collect(1 << 30)
    assert [path.name for path in (tmp_path / "d").iterdir()] == [".new.1.part"]


@pytest.mark.parametrize("kind", ["directory", "objects"])
def test_another_machine_finds_it_in_the_storage(tmp_path: Path, kind: str) -> None:
    storage = (
        LocalStorage(tmp_path / "s")
        if kind == "directory"
        else FsspecStorage(f"memory://{tmp_path.name}-cache")
    )
    mine = DatasetCache(tmp_path / "mine", storage=storage).open("d", "1", letters)
    yours = DatasetCache(tmp_path / "yours", storage=storage).open("d", "1", never)
    assert list(mine) == list(yours)


def test_what_was_not_uploaded_is_by_the_next_that_reads_it(tmp_path: Path) -> None:
    DatasetCache(tmp_path / "mine").open("d", "1", letters)
    storage = LocalStorage(tmp_path / "s")
    DatasetCache(tmp_path / "mine", storage=storage).open("d", "1", never)
    assert len(DatasetCache(tmp_path / "yours", storage=storage).open("d", "1", never)) == 49


def test_a_damaged_download_is_not_taken(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "s")
    DatasetCache(tmp_path / "mine", storage=storage).open("d", "1", letters)
    (path,) = (tmp_path / "s").glob("*/00000.bin")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(TrialError, match="is damaged"):
        DatasetCache(tmp_path / "yours", storage=storage).open("d", "1", never)
    assert not (tmp_path / "yours" / "d" / "1").exists()


def test_data_layer_says_where_and_how_much(tmp_path: Path) -> None:
    layer = {
        "host_storage_path": str(tmp_path / "a"),
        "limit_bytes": 1,
        "url": f"file://{tmp_path}/s",
    }
    for name in ("x", "y"):
        DatasetCache.of(layer).open(name, "1", letters)
    assert [path.name for path in (tmp_path / "a").glob("*/1")] == ["1"]
    assert len(list((tmp_path / "s").iterdir())) == 2
    assert isinstance(DatasetCache.of(layer, tmp_path / "b").open("x", "1", never), Records)
    with pytest.raises(
        TrialError, match=r"data_layer.limit_bytes is '1 GB'; give a whole number of bytes"
    ):
        DatasetCache.of({"limit_bytes": "1 GB"})

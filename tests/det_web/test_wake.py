"""What is written is heard of at once; nothing is heard of what is not."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from det_web.events import Wake

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture
def wake() -> Iterator[Wake]:
    wake = Wake()
    yield wake
    wake.close()
    wake.close()


def test_a_write_wakes_who_waits(wake: Wake, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    wake.watch([tmp_path])
    threading.Timer(0.1, (tmp_path / "file").write_text, ["after"]).start()
    began = time.monotonic()
    assert wake.wait(30)
    assert time.monotonic() - began < 20
    time.sleep(0.1)
    wake.wait(0)
    assert not wake.wait(0.05)  # all of it was heard


def test_reading_and_unwatched_directories_do_not_wake(wake: Wake, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for each in (one, other):
        each.mkdir()
        (each / "file").write_text("before")
    wake.watch([one, other])
    (one / "file").read_text()
    assert not wake.wait(0.05)
    wake.watch([one])
    wake.wait(0.05)  # that it is not watched any more is told once
    (other / "file").write_text("after")
    assert not wake.wait(0.05)
    (one / "file").write_text("after")
    assert wake.wait(5)


def test_missing_directory_is_watched_once_it_exists(wake: Wake, tmp_path: Path) -> None:
    wake.watch([tmp_path / "none"])
    assert not wake.is_watching
    assert not wake.wait(0.05)
    (tmp_path / "none").mkdir()
    wake.watch([tmp_path / "none"])
    assert wake.is_watching


def test_more_than_is_read_at_once_is_heard_of_as_one(wake: Wake, tmp_path: Path) -> None:
    wake.watch([tmp_path])
    for number in range(8000):
        (tmp_path / f"{number:0100}").touch()
    assert wake.wait(5)
    while wake.wait(0):
        continue
    assert not wake.wait(0.05)

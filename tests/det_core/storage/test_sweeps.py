"""What a sweep must not take.

The directory of a writer that began again while it was being taken.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from det_core.storage import _files


@pytest.fixture
def abandoned(tmp_path: Path) -> Path:
    """Return the directory of a writer that has made it, and not yet locked it."""
    path, lock = _files.claim(tmp_path, "one")
    os.close(lock)
    return path


def test_a_directory_that_is_made_again_while_it_is_swept_stays(
    tmp_path: Path, abandoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, renamed = Path.rename, []

    def moved(self: Path, target: Path) -> Path:
        there = rename(self, target)
        if not renamed:
            abandoned.mkdir()
        renamed.append(self)
        return there

    monkeypatch.setattr(Path, "rename", moved)
    _files.sweep(tmp_path)
    assert renamed == [abandoned]
    assert [path.name for path in abandoned.parent.iterdir()] == [abandoned.name]


def test_sweep_spares_a_directory_that_a_writer_made_again(
    tmp_path: Path, abandoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sweep had removed the first one."""
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        abandoned.rename(abandoned.with_name("deleting-first"))
        abandoned.mkdir()
        flock(descriptor, operation)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", late)
        assert not _files.sweep_one(tmp_path, abandoned)
    assert abandoned.exists()
    _files.sweep(tmp_path)
    assert not abandoned.exists()

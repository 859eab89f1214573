"""What a process writes is read in whole lines, however it is cut."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_node import lines
from det_node.lines import read_lines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def read_back(pieces: Sequence[bytes]) -> list[bytes]:
    """Return what is read of pieces, each written when the one before has been read."""
    read, write = os.pipe()
    found: list[bytes] = []
    try:
        reader = threading.Thread(target=lambda: found.extend(read_lines(read)))
        reader.start()
        for piece in pieces:
            os.write(write, piece)
            os.sched_yield()
        os.close(write)
        reader.join()
    finally:
        os.close(read)
    return found


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"bc\n", b"\r\n", b"\xff"]), max_size=20))
def test_no_byte_is_lost_and_only_the_last_piece_has_no_end(pieces: list[bytes]) -> None:
    found = read_back(pieces)
    assert b"".join(found) == b"".join(pieces)
    assert all(each.endswith((b"\n", b"\r")) for each in found[:-1])
    assert b"" not in found


def test_a_line_in_pieces_is_read_whole(pipe: tuple[int, int]) -> None:
    found = read_lines(pipe[0])
    os.write(pipe[1], b"one\ntw")
    assert next(found) == b"one\n"
    os.write(pipe[1], b"o\r")
    os.write(pipe[1], b"\n")
    assert next(found) == b"two\r\n"


def test_an_incomplete_line_is_read_after_a_second(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_QUIET_SECONDS", 0.2)
    os.write(pipe[1], b"loading ...")
    began = time.monotonic()
    found = read_lines(pipe[0])
    assert next(found) == b"loading ..."
    assert time.monotonic() - began >= 0.2
    os.write(pipe[1], b" done\n")
    assert next(found) == b" done\n"


@pytest.mark.slow
def test_a_slow_reader_tears_no_line(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe is full in the middle of a line, whose rest is written when there is room."""
    monkeypatch.setattr(lines, "_QUIET_SECONDS", 0.5)
    expected = [b"%d %s\n" % (n, b"x" * 80) for n in range(5000)]

    def write() -> None:
        with os.fdopen(os.dup(pipe[1]), "wb", buffering=0) as file:
            for line in expected:
                file.write(line[:30])
                file.write(line[30:])
        os.close(pipe[1])

    writer = threading.Thread(target=write)
    writer.start()
    found = []
    for data in read_lines(pipe[0]):
        if len(found) < 3:
            time.sleep(1)
        found.append(data)
    writer.join()
    assert b"".join(found) == b"".join(expected)
    assert all(data.endswith(b"\n") for data in found)


def test_a_line_without_end_is_read_when_it_is_very_long(pipe: tuple[int, int]) -> None:
    threading.Thread(target=os.write, args=(pipe[1], b"x" * 70000)).start()
    found = read_lines(pipe[0])
    assert len(next(found)) > 65536

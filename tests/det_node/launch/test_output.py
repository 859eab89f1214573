"""What ranks write reaches people in lines that say whose they are."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_node.launch._output import Files, Prefixed, Tails


def shown(*writes: tuple[int, bytes], prefix: bool = True) -> bytes:
    stream = io.BytesIO()
    output = Prefixed(stream, prefix=prefix)
    for rank, data in writes:
        output.write(rank, data)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([b"a\nb\n"], b"[rank=0] a\n[rank=0] b\n"),
        ([b"no end"], b"[rank=0] no end\n"),
        ([b"a\r\nb"], b"[rank=0] a\r\n[rank=0] b\n"),
        ([b"\r", b" 1%\r", b" 2%\n"], b"[rank=0]  1%\r[rank=0]  2%\n"),
        ([b"1%\r"], b"[rank=0] 1%\r"),
        ([b"\n"], b"[rank=0] \n"),
        ([b"\xff\x00\xfe\n"], b"[rank=0] \xff\x00\xfe\n"),
        ([], b""),
    ],
)
def test_each_line_has_its_rank_before_it(written, expected):
    assert shown(*((0, data) for data in written)) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=30))
def test_nothing_of_what_is_written_is_lost_but_returns(writes):
    text = shown(*writes)
    for rank in range(3):
        mine = [
            line
            for line in text.replace(b"\r", b"\n").split(b"\n")
            if line.startswith(b"[rank=%d] " % rank)
        ]
        said = b"".join(data for writer, data in writes if writer == rank)
        if b"[rank=" not in said:
            kept = b"".join(line.removeprefix(b"[rank=%d] " % rank) for line in mine)
            assert kept == said.replace(b"\r", b"").replace(b"\n", b"")


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_output_of_one_rank_is_unchanged_without_prefix(written):
    assert shown(*((0, data) for data in written), prefix=False) == b"".join(written)


@pytest.mark.parametrize(
    ("closed", "failure"), [(False, "No space left on device"), (True, "")], ids=["full", "closed"]
)
def test_stream_that_cannot_be_written_to_is_given_up(closed: bool, failure: str):
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe, open("/dev/full", "wb") as full:
        output = Prefixed(pipe if closed else full)
        for _ in range(2):
            output.write(0, b"a line\n")
        assert output.failure == failure


def test_file_on_a_full_disk_loses_lines_and_no_rank(tmp_path: Path):
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    files = Files(tmp_path)
    files.write(0, b"lost\n")
    files.write(1, b"kept\n")
    files.close()
    assert files.failure == "No space left on device"
    assert (tmp_path / "rank-1.log").read_bytes() == b"kept\n"


def test_files_hold_what_each_rank_wrote_unchanged(tmp_path: Path):
    files = Files(tmp_path / "logs")
    files.write(0, b"a\r")
    files.write(1, b"\xff")
    files.write(0, b"b")
    files.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "logs").iterdir()} == {
        "rank-0.log": b"a\rb",
        "rank-1.log": b"\xff",
    }


CHAIN = (
    b"Traceback (most recent call last):\nKeyError: 1\n\n"
    b"During handling of the above exception, another exception occurred:\n\n"
    b"Traceback (most recent call last):\nValueError: 2\n"
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"epoch 1\n" + CHAIN, CHAIN.decode().rstrip("\n")),
        (
            b"Traceback (most recent call last):\nOld: 1\nepoch 2\n" + CHAIN,
            CHAIN.decode().rstrip("\n"),
        ),
        (b"".join(b"%d\n" % n for n in range(20)), "\n".join(str(n) for n in range(10, 20))),
        (b"one\n 0%\r 33%\r100%\r\ntwo\n 0%\r 33%", "one\n100%\ntwo\n 33%"),
        (b"\xff\n", "\\xff"),
        (b"", ""),
    ],
)
def test_last_words_are_the_last_traceback_or_the_last_lines(written, expected):
    tails = Tails()
    for at in range(0, len(written), 7):
        tails.write(0, written[at : at + 7])
    assert tails.last_words(0) == expected
    assert (0 in tails.failing_since) == (b"Traceback" in written)

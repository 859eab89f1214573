"""What ranks write reaches people in lines that say whose they are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.launch._output import Files, Prefixed, Tails


def shown(*writes: tuple[int, bytes], prefix: bool = True) -> bytes:
    stream = io.BytesIO()
    output = Prefixed(stream, prefix=prefix)
    for rank, data in writes:
        output.write(rank, data)
    output.close()
    return stream.getvalue()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([b"a\nb\n"], b"[rank=0] a\n[rank=0] b\n"),
        ([b"a", b"b\n"], b"[rank=0] ab\n"),
        ([b"no end"], b"[rank=0] no end\n"),
        ([b"a\r\nb"], b"[rank=0] a\r\n[rank=0] b\n"),
        ([b"a\r", b"\nb"], b"[rank=0] a\r\n[rank=0] b\n"),
        ([b"\r 1%", b"\r 2%", b"\n"], b"[rank=0]  1%\r[rank=0]  2%\n"),
        ([b"1%\r"], b"[rank=0] 1%\r"),
        ([b"\n"], b"[rank=0] \n"),
        ([b"\xff\x00\xfe\n"], b"[rank=0] \xff\x00\xfe\n"),
        ([], b""),
    ],
)
def test_each_line_has_its_rank_before_it(written, expected):
    assert shown(*((0, data) for data in written)) == expected


def test_lines_of_several_ranks_are_never_mixed():
    assert shown((0, b"of "), (1, b"of one\n"), (0, b"nought\n")) == b"[rank=1] of one\n[rank=0] of nought\n"


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=30))
def test_nothing_of_what_is_written_is_lost_but_returns(writes):
    text = shown(*writes)
    for rank in range(3):
        mine = [line for line in text.replace(b"\r", b"\n").split(b"\n") if line.startswith(b"[rank=%d] " % rank)]
        said = b"".join(data for writer, data in writes if writer == rank)
        if b"[rank=" not in said:
            kept = b"".join(line.removeprefix(b"[rank=%d] " % rank) for line in mine)
            assert kept == said.replace(b"\r", b"").replace(b"\n", b"")


def test_without_prefix_lines_of_several_ranks_are_not_mixed_either():
    assert shown((0, b"hello"), (1, b"hello"), (0, b"\n"), (1, b"\n"), prefix=False) == b"hello\nhello\n"


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_without_prefix_what_a_rank_writes_is_passed_on_byte_by_byte(written):
    assert shown(*((0, data) for data in written), prefix=False) == b"".join(written)


def test_a_line_without_end_is_shown_when_it_is_very_long():
    stream = io.BytesIO()
    Prefixed(stream).write(0, b"x" * 70000)
    assert stream.getvalue() == b"[rank=0] " + b"x" * 70000 + b"\n"


def test_what_waits_for_its_end_is_shown_after_a_second(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("det_core.launch._output.time.monotonic", lambda: clock[0])
    stream = io.BytesIO()
    output = Prefixed(stream)
    output.write(0, b"loading ...")
    assert output.show_quiet() == pytest.approx(1.0)
    assert stream.getvalue() == b""
    clock[0] += 1.1
    assert output.show_quiet() is None
    assert stream.getvalue() == b"[rank=0] loading ...\n"


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
        (b"Traceback (most recent call last):\nOld: 1\nepoch 2\n" + CHAIN, CHAIN.decode().rstrip("\n")),
        (b"".join(b"%d\n" % n for n in range(20)), "\n".join(str(n) for n in range(10, 20))),
        (b"\xff\n", "\\xff"),
        (b"", ""),
    ],
)
def test_the_last_words_are_the_last_traceback_with_its_causes_or_the_last_lines(written, expected):
    tails = Tails()
    for at in range(0, len(written), 7):
        tails.write(0, written[at : at + 7])
    assert tails.last_words(0) == expected
    assert (0 in tails.failing_since) == (b"Traceback" in written)

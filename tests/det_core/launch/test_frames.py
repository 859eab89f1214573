"""What a host's process says is understood, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.launch._frames import MAGIC, MAX_BODY, MAX_NOISE, Frame, FrameDecoder, FrameError, Kind, encode

FRAMES = st.lists(st.builds(Frame, st.sampled_from(Kind), st.integers(0, 4096), st.binary(max_size=99)), max_size=9)


@given(FRAMES, st.binary(max_size=50).filter(lambda noise: MAGIC[:1] not in noise), st.integers(1, 64))
def test_frames_arrive_whole_in_whatever_pieces_they_come_and_what_a_shell_says_before_is_set_aside(
    frames, noise, size
):
    data = noise + MAGIC + b"".join(encode(frame.kind, frame.rank, frame.body) for frame in frames)
    decoder, found = FrameDecoder(), []
    for at in range(0, len(data), size):
        found += decoder.feed(data[at : at + size])
    assert found == frames
    assert decoder.noise == noise


@given(st.binary(max_size=300))
def test_garbage_is_an_error_or_is_waited_out_but_never_anything_else(data):
    try:
        frames = FrameDecoder().feed(MAGIC + data)
    except FrameError:
        return
    assert all(isinstance(frame.kind, Kind) and len(frame.body) <= MAX_BODY for frame in frames)


def test_a_process_that_only_talks_is_not_listened_to_for_long():
    with pytest.raises(FrameError, match="it did not start det"):
        FrameDecoder().feed(b"x" * (MAX_NOISE + 1))


def test_a_frame_that_is_too_large_is_refused_before_it_is_read():
    with pytest.raises(FrameError, match="kind 3 with 4294967295 bytes"):
        FrameDecoder().feed(MAGIC + b"\x03" + b"\0\0\0\0" + b"\xff\xff\xff\xff")

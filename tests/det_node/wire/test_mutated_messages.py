"""Messages of other bytes than a worker, an agent or a driver sends.

Each is one of theirs, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.crafted import mutations, reads_safely

from det_node import protocol
from det_node.agent import _frames
from det_node.protocol import Envelope

SAID = [
    protocol.hello(1, 0),
    Envelope(1, protocol.Validated(3, {"loss": 0.5, "text": "x", "more": [1, None]}, 10)),
    Envelope(2, protocol.Reported("training", 3, {"loss": float("nan")}, 0.5)),
    Envelope(3, protocol.Meet(("127.0.0.1", 4000))),
    Envelope(4, protocol.Origin({"python": "3.12", "packages": {"torch": "2"}})),
]
MESSAGES: list[tuple[Callable[[bytes], Any], bytes]] = [
    *((protocol.decode_envelope, protocol.encode(each)) for each in SAID),
    (protocol.decode_welcome, protocol.encode(protocol.Welcome(1, "0.1.0"))),
    (
        protocol.decode_driver_message,
        protocol.encode(protocol.Reply(3, value=0.5, address=("::1", 1))),
    ),
    (protocol.decode_driver_message, protocol.encode(protocol.Preempt("why"))),
    (
        _frames.decode_agent_events,
        _frames.encode_frame(
            [
                _frames.WorkerMessage(1, 0, 1, SAID[1]),
                _frames.Ended(1, -9),
                _frames.LogChunk(1, "a", 0, b"x"),
                _frames.LoggedFile(1, "a/1.txt", b"x"),
            ]
        ),
    ),
    (_frames.decode_orders, _frames.encode_frame([_frames.EndRuns(), _frames.Heartbeat()])),
]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, len(MESSAGES) - 1), mutate=mutations())
def test_a_message_of_other_bytes_is_read_or_refused(
    scratch: Path, which: int, mutate: Callable[[bytes], bytes]
) -> None:
    decode, data = MESSAGES[which]
    assert reads_safely(lambda: decode(data), scratch, ())
    reads_safely(lambda: decode(mutate(data)), scratch, (msgspec.DecodeError, UnicodeDecodeError))

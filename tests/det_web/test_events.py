"""What pages are told of changes.

Each at once, and of those that do not end not more than they can show.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from pathlib import Path

import pytest

from det_driver.client import Client
from det_web import events
from det_web.events import Live

pytestmark = pytest.mark.process


def told_in(home: Path, seconds: float) -> int:
    """Rename an experiment again and again for so long; return how often a page is told."""
    over = threading.Event()
    live, count = Live(home), 0

    def rename() -> None:
        experiment, number = Client(home).get_experiment(1), 0
        while not over.wait(0.02):
            number += 1
            experiment.set_name(f"name {number}")

    async def listen() -> None:
        nonlocal count
        until = time.monotonic() + seconds
        async for part in live._stream():
            count += b"event: experiments" in part
            if time.monotonic() > until:
                return

    changing = threading.Thread(target=rename)
    changing.start()
    try:
        asyncio.run(asyncio.wait_for(listen(), 60))
    finally:
        over.set()
        changing.join()
    return count


def test_frequent_changes_are_sent_at_once_and_then_throttled(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "home", symlinks=True)
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.05)
    all_of_them = told_in(tmp_path / "home", 4.0)
    monkeypatch.setattr(events, "AT_ONCE", 4)
    monkeypatch.setattr(events, "STEADY_SECONDS", 1.0)
    few = told_in(tmp_path / "home", 4.0)
    assert 4 < few <= 4 + 4 + 2
    assert all_of_them > few

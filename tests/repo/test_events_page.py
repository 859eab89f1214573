"""Every event and each of its fields is on the page."""

from __future__ import annotations

import runpy
from pathlib import Path

writer = runpy.run_path(str(Path(__file__).with_name("events_page.py")))


def test_the_page_says_what_the_events_are() -> None:
    """Where this fails, run tests/repo/events_page.py."""
    assert writer["PAGE"].read_text(encoding="utf-8") == writer["render"]()


def test_every_field_is_described() -> None:
    silent = [
        f"{kind.__name__}.{field}"
        for kind in (*writer["EVENTS"], writer["BestCheckpoint"])
        for field in kind.__struct_fields__
        if field not in ("time", "experiment") and field not in writer["_described"](kind)
    ]
    assert silent == []

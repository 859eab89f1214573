"""Says how far a build is."""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import IO, Self

_PERCENT = re.compile(r"\[ *(\d{1,3})%\]")
_STEP = 10
_WAIT_SECONDS = 0.5


class Progress:
    """Shows the percentage of make and the time that has passed: in one line of a terminal, else a line for each tenth."""

    def __init__(self, title: str, out: IO[str] | None = None) -> None:
        self._title, self._out = title, out or sys.stderr
        self._live = self._out.isatty()
        self._start, self._percent, self._told = time.monotonic(), 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if self._live:
            self._thread.start()
        else:
            self._out.write(f"{self._title}\n")
            self._out.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._live:
            self._thread.join()
            self._out.write("\r\x1b[K")
            self._out.flush()

    def line(self, text: str) -> None:
        """Take notice of a line of the build's output."""
        found = _PERCENT.search(text)
        if not found:
            return
        self._percent = max(self._percent, int(found[1]))
        if not self._live and self._percent >= self._told + _STEP:
            self._told = self._percent
            self._out.write(f"  {self._percent:3d} %  after {self.passed}\n")
            self._out.flush()

    @property
    def passed(self) -> str:
        """The time since it began, as minutes and seconds."""
        minutes, seconds = divmod(round(time.monotonic() - self._start), 60)
        return f"{minutes}:{seconds:02d}"

    def _tick(self) -> None:
        while not self._over.wait(_WAIT_SECONDS):
            self._out.write(f"\r\x1b[K{self._title} {self._percent:3d} %  {self.passed}")
            self._out.flush()

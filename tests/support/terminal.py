"""A terminal of a given width: what a command writes to it, and what a person then sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 100
_TOKENS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")


@dataclass
class Screen:
    """Lines of at most `columns`.

    `wrapped` are those that were longer, `frames` what was seen before each redrawing.

    `written` is all that came, with its controls.
    """

    columns: int
    lines: list[str] = field(default_factory=lambda: [""])
    wrapped: list[str] = field(default_factory=list)
    frames: list[list[str]] = field(default_factory=list)
    colours: set[str] = field(default_factory=set)
    written: str = ""
    _continued: set[int] = field(default_factory=set)
    _row: int = 0
    _column: int = 0
    _drawn: bool = False

    def feed(self, text: str) -> None:
        self.written += text
        for token in _TOKENS.finditer(text):
            if token[2]:
                self._control(token[1], token[2])
            elif token[0] == "\r":
                self._column = 0
            elif token[0] == "\n":
                self._down()
            else:
                self._write(token[0])

    def _write(self, text: str) -> None:
        self._drawn = True
        for character in text:
            if self._column == self.columns:
                self.wrapped.append(self.lines[self._row])
                self._down()
                self._continued.add(self._row)
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1

    def _down(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self.lines):
            self.lines.append("")

    def _control(self, parameters: str, kind: str) -> None:
        if kind == "A":
            self._row -= int(parameters or 1)
            assert self._row >= 0
        elif kind == "K":
            assert parameters == "2"
            if self._drawn:  # what comes now is drawn anew, from the last line up
                self.frames.append([*self.lines])
                self._drawn = False
            self.lines[self._row] = ""
        elif kind == "m":
            self.colours |= {
                code
                for code in parameters.split(";")
                if code.startswith(("3", "4", "9")) and len(code) > 1
            }
        else:
            assert parameters.startswith("?"), (
                f"a control that this terminal does not know: {parameters}{kind}"
            )

    @property
    def text(self) -> str:
        """What is seen, with lines that were too long in one piece."""
        text = ""
        for row, line in enumerate(self.lines):
            text = (text if row in self._continued else text.rstrip(" ") + "\n") + line
        return text.strip("\n").rstrip()


def seen(
    argv: Sequence[str],
    columns: int,
    *,
    env: dict[str, str],
    interrupt: Callable[[str], bool] = lambda text: False,
    watch: Callable[[Screen], None] = lambda screen: None,
    status: int = 0,
    **options: Any,
) -> Screen:
    """Return the screen after a command has ended.

    Ctrl-C is typed once `interrupt` is true of what is seen.

    `watch` looks at the screen whenever something has changed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        argv,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={"TERM": "xterm-256color", **env},
        **options,
    )
    os.close(theirs)
    screen, typed = Screen(columns), False
    try:
        while part := os.read(ours, 65536):
            screen.feed(part.decode(errors="replace"))
            watch(screen)
            if not typed and interrupt(screen.text):
                typed = True
                os.kill(process.pid, signal.SIGINT)
    except OSError:
        pass  # Linux says so when the other side is closed
    os.close(ours)
    assert process.wait(timeout=30) == status, screen.text
    return screen


class Terminal:
    """A command in a pseudo-terminal of 30 rows and 100 columns, as a person has it."""

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self._end, theirs = pty.openpty()
        self.resize(30, 100)
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def read_until(self, text: str) -> str:
        """Return what appears up to a text, which is removed from what is read next."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self.seen!r}"
            if select.select([self._end], [], [], left)[0]:
                try:
                    self.seen += os.read(self._end, 4096).decode()
                except OSError as error:
                    # Linux says so when the command has ended.
                    raise AssertionError(f"{text!r} is not in {self.seen!r}") from error
        before, _, self.seen = self.seen.partition(text)
        return before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._end)

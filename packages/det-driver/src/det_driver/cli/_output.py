"""Makes output safe: control characters are escaped, and failing output does not stop training."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from det_node.output import discard

# The controls of C0 and C1 except tab and newline, those that change the direction of text, as in
# CVE-2021-42574, and halves of characters, which no encoding holds.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_NO_COLOUR = "\x1b[0m"


def printable(text: str) -> str:
    """Return text with control characters and newlines escaped as in Python, such as `\\x1b`."""
    return _CONTROLS.sub(_escaped, text).replace("\n", "\\n").replace("\t", "\\t")


def coloured(text: str) -> str:
    """Return a line with control characters other than colours escaped, for a terminal."""
    parts = _COLOUR.split(text)
    colours = [_visible(colour) for colour in _COLOUR.findall(text)]
    shown = "".join(
        _CONTROLS.sub(_escaped, part) + colour
        for part, colour in zip(parts, [*colours, ""], strict=True)
    )
    # A line does not colour those after it.
    last = next((colour for colour in reversed(colours) if colour), _NO_COLOUR)
    return shown if last in (_NO_COLOUR, "\x1b[m") else shown + _NO_COLOUR


def _visible(colour: str) -> str:
    """Return a colour without the attribute 8, which hides text.

    It is no attribute among the numbers of a colour such as `38;5;8`.
    """
    numbers, kept = colour[2:-1].split(";"), list[str]()
    while numbers:
        count = 1
        if numbers[0] in ("38", "48", "58"):
            count = {"2": 5, "5": 3}.get(numbers[1] if numbers[1:] else "", 1)
        if numbers[0].lstrip("0") != "8":
            kept += numbers[:count]
        del numbers[:count]
    return f"\x1b[{';'.join(kept)}m" if kept else ""


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class Output:
    """A stream that escapes control characters. `raw` is the stream below it."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def write(self, text: str) -> int:
        self.raw.write(_CONTROLS.sub(_escaped, text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)


def raw(stream: Any) -> Any:
    """Return the stream below those that escape control characters.

    It is for output with control characters of its own, and for data in a file.
    """
    # A command that runs another has two.
    while isinstance(stream, Output):
        stream = stream.raw
    return stream


@contextmanager
def escaped() -> Iterator[None]:
    """Escape control characters in all output."""
    with redirect_stdout(Output(sys.stdout)), redirect_stderr(Output(sys.stderr)):
        yield


@contextmanager
def unescaped() -> Iterator[None]:
    """Do not escape the output of the user's code in this process."""
    with redirect_stdout(raw(sys.stdout)), redirect_stderr(raw(sys.stderr)):
        yield


def open_closed_streams() -> None:
    """Open /dev/null for closed standard streams (`>&-`).

    Otherwise another file would get their descriptors.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def flush() -> str:
    """Flush the standard streams, and return why that failed.

    A stream that its reader has closed is no failure.
    """
    failure = ""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                failure = failure or error.strerror or str(error)
            with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
                discard(stream)
    return failure

"""What a person is shown of an exception: the user's frames, not det's."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from .backend import RankLost
from .errors import DetError, InvalidHP, StorageError
from .host import HostLost, Outcome

_OURS = ("det_core", "det_driver", "det_torch", "det_keras", "det_estimator", "det_lightning", "pluggy", "importlib")
_PYTHON = sysconfig.get_path("stdlib")
# Torch puts the traceback of a loader's process into the message of what it raises.
_INNER = "Original Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(.*)", line \d+, in ')
_LINE = 500
_TEXT = 1 << 16

F = TypeVar("F")


def explained(error: BaseException) -> tuple[Outcome, str, str]:
    """Return how a run ended with `error`: the outcome, the sentence for a person, and the traceback where it helps."""
    match error:
        case InvalidHP():
            return Outcome.INVALID_HP, message(error) or "these hyperparameters cannot work", ""
        case StorageError():
            return Outcome.BLOCKED, message(error), ""
        case DetError():
            return Outcome.MISTAKE, message(error), ""
        case RankLost():
            return Outcome.PEER_LOST, message(error), ""
        case HostLost():
            return Outcome.PREEMPTED, message(error), ""
        case KeyboardInterrupt():
            return Outcome.PREEMPTED, summary(error), user_traceback(error)
        case SystemExit():
            called = f"the trial called sys.exit({error.code!r}); return, or raise det_core.InvalidHP"
            return Outcome.MISTAKE, called, ""
    return Outcome.ERROR, summary(error), user_traceback(error)


def user_traceback(error: BaseException) -> str:
    """Format `error` with the frames from the user's first on, det's left out; all frames where it is nobody else's."""
    shown = traceback.TracebackException.from_exception(error)
    _trim(shown, set())
    text = _printable("".join(shown.format()))
    head, inner, rest = text.partition(_INNER)
    if inner:
        text = head + inner + _trimmed_text(rest)
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}\n  ...\n{text[-_TEXT // 2 :]}"


def summary(error: BaseException) -> str:
    """Return the exception in one line: its type and the first line of its message, or the last of a loader's process."""
    text = message(error)
    if _INNER in text:
        return _short(text.strip().splitlines()[-1])
    lines = text.strip().splitlines()
    return _short(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def message(error: BaseException) -> str:
    """Return what an exception says, as text that can be sent and printed, also where its author got `__str__` wrong."""
    try:
        return _printable(str(error))
    except Exception as wrong:
        return f"<its __str__ raised {type(wrong).__name__}>"


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _short(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]}..."


def _trim(shown: traceback.TracebackException, seen: set[int]) -> None:
    if id(shown) in seen:
        return
    seen.add(id(shown))
    kept = _kept(list(shown.stack), lambda frame: frame.filename)
    if issubclass(shown.exc_type or Exception, SyntaxError) and all(_is_ours(frame.filename) for frame in kept):
        kept = []  # it says itself which line of the user's is meant
    shown.stack = traceback.StackSummary.from_list(kept)
    for inner in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if inner is not None:
            _trim(inner, seen)


def _trimmed_text(text: str) -> str:
    """Trim a traceback that is text already."""
    frames: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if _FRAME.match(line) or (line[:1].strip() and len(frames) > 1):
            frames.append([])
        frames[-1].append(line)
    inside = [frame for frame in frames if frame and _FRAME.match(frame[0])]
    kept = _kept(inside, lambda frame: _FRAME.match(frame[0])[1])  # type: ignore[index]
    return "".join("".join(frame) for frame in frames if frame not in inside or frame in kept)


def _kept(frames: Sequence[F], filename: Callable[[F], str]) -> list[F]:
    """Return the frames to show: from the user's first, else from a library's first, else all; none of det's between."""
    for is_other in (_is_ours_or_a_library, _is_ours):
        first = next((i for i, frame in enumerate(frames) if not is_other(filename(frame))), None)
        if first is not None:
            return [frame for frame in frames[first:] if not _is_ours(filename(frame))]
    return list(frames)


def _is_ours_or_a_library(filename: str) -> bool:
    parts = Path(filename).parts
    return _is_ours(filename) or "site-packages" in parts or filename.startswith(_PYTHON)


def _is_ours(filename: str) -> bool:
    if filename.startswith("<frozen") or filename.endswith("runpy.py"):
        return True
    return any(filename.startswith(folder) for folder in _our_folders())


def _our_folders() -> list[str]:
    """Where the packages lie; by their places, as a user's folder may have the name of one."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _OURS]
    return [os.path.join(os.path.dirname(file), "") for file in files if file]

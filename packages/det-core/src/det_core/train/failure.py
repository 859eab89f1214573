"""Describes exceptions for a person: with the user's frames, without det's."""

from __future__ import annotations

import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from ..errors import CheckpointDamaged, DetError, InvalidHP, StorageError, StorageUnreachable
from ..ranks.backend import RankLost
from ..support.imports import is_installed
from .host import HostLost, Outcome

if TYPE_CHECKING:
    from ..config import ExperimentConfig

_OURS = (
    "det_core",
    "det_node",
    "det_driver",
    "det_torch",
    "det_keras",
    "det_estimator",
    "det_lightning",
    "pluggy",
    "importlib",
)
_PYTHON = sysconfig.get_path("stdlib")
# Torch puts the traceback of a loader's process into the message of what it raises.
_INNER = "Original Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(.*)", line \d+, in ')
_LINE = 500
# The names of the errors of torch, TensorFlow and CuPy.
_OUT_OF_MEMORY = ("OutOfMemoryError", "ResourceExhaustedError")
# What torch's allocator of the CPU, CUDA, cuBLAS, cuDNN and XLA write into a RuntimeError.
_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: |CUDA error: out of memory|_STATUS_ALLOC_FAILED|^RESOURCE_EXHAUSTED: "
)
_TEXT = 1 << 16

F = TypeVar("F")


def explained(
    error: BaseException, config: ExperimentConfig | None = None
) -> tuple[Outcome, str, str]:
    """Return the outcome of a run that ended with `error`, a sentence, and the traceback.

    The sentence is for a person. The traceback is empty where it does not help. With the
    configuration of a run, the sentence says why a missing file may not be found.
    """
    outcome, sentence, trace = _explained(error)
    return outcome, sentence + (missing_file(error, config) if config is not None else ""), trace


def _explained(error: BaseException) -> tuple[Outcome, str, str]:
    match error:
        case InvalidHP():
            return Outcome.INVALID_HP, message(error) or "these hyperparameters cannot work", ""
        case StorageUnreachable():
            return Outcome.UNREACHABLE, message(error), ""
        case StorageError():
            return Outcome.BLOCKED, message(error), ""
        case CheckpointDamaged():
            return Outcome.DAMAGED, message(error), ""
        case DetError():
            return Outcome.MISTAKE, message(error), ""
        case RankLost():
            return Outcome.PEER_LOST, message(error), ""
        case HostLost():
            return Outcome.PREEMPTED, message(error), ""
        case KeyboardInterrupt():
            return Outcome.PREEMPTED, summary(error), user_traceback(error)
        case SystemExit():
            called = (
                f"the trial called sys.exit({error.code!r}); return, or raise det_core.InvalidHP"
            )
            return Outcome.MISTAKE, called, ""
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            # A restarted run would meet the same full disk.
            return Outcome.BLOCKED, summary(error), user_traceback(error)
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ in _OUT_OF_MEMORY
        or (isinstance(error, RuntimeError) and _NO_MEMORY.search(message(error)))
    ):
        return Outcome.OUT_OF_MEMORY, summary(error), user_traceback(error)
    return Outcome.ERROR, summary(error), user_traceback(error)


def missing_file(error: BaseException, config: ExperimentConfig) -> str:
    """Return why a run may not find a file that its user has, or an empty text.

    - A relative path begins in the experiment's copy of the code.
    - A path of a bind mount is one that only a container would see.
    """
    name = getattr(error, "filename", None)
    if isinstance(error, FileNotFoundError) and isinstance(name, str) and not os.path.isabs(name):
        return (
            "; a run has a copy of the code directory, where relative paths begin: give an"
            " absolute path, or put the file into the code directory"
        )
    return _mount(error, config)


def _mount(error: BaseException, config: ExperimentConfig) -> str:
    if config.environment.container or not isinstance(
        error, FileNotFoundError | NotADirectoryError | PermissionError
    ):
        return ""
    name = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else ""
    for mount in config.bind_mounts:
        if name and Path(name).is_relative_to(mount.container_path):
            return (
                f"; bind_mounts has {mount.host_path} at {mount.container_path}, which only"
                f" containers see: read it from {mount.host_path}, run with --bind"
                f" {mount.host_path}:{mount.container_path}, or set environment.container"
            )
    return ""


def line_of_caller() -> str:
    """Return the user's line that called det, such as `train.py:12: `. Empty if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (
        _is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_PYTHON)
    ):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: " if frame is not None else ""


def user_traceback(error: BaseException) -> str:
    """Format `error` with the frames from the user's first on, without det's.

    All frames are shown if all of them are det's.
    """
    shown = traceback.TracebackException.from_exception(error)
    _trim(shown, set())
    text = _printable("".join(shown.format()))
    head, inner, rest = text.partition(_INNER)
    if inner:
        text = head + inner + _trimmed_text(rest)
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}\n  ...\n{text[-_TEXT // 2 :]}"


def summary(error: BaseException) -> str:
    """Return an exception in one line: its type and the first line of its message.

    For an error in a process of a data loader, it is the last line of that process's traceback.
    """
    text = message(error)
    if _INNER in text:
        return _short(text.strip().splitlines()[-1])
    lines = text.strip().splitlines()
    return _short(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def message(error: BaseException) -> str:
    """Return the message of an exception as text that can be sent and printed.

    This holds even if its `__str__` raises.
    """
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
    if issubclass(shown.exc_type or Exception, SyntaxError) and all(
        _is_ours(frame.filename) for frame in kept
    ):
        # A SyntaxError itself names the user's line.
        kept = []
    shown.stack = traceback.StackSummary.from_list(kept)
    for inner in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if inner is not None:
            _trim(inner, seen)


def _trimmed_text(text: str) -> str:
    """Trim a traceback that is already text."""
    frames: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if _FRAME.match(line) or (line[:1].strip() and len(frames) > 1):
            frames.append([])
        frames[-1].append(line)
    inside = [frame for frame in frames if frame and _FRAME.match(frame[0])]
    kept = _kept(inside, lambda frame: _FRAME.match(frame[0])[1])  # type: ignore[index]
    return "".join("".join(frame) for frame in frames if frame not in inside or frame in kept)


def _kept(frames: Sequence[F], filename: Callable[[F], str]) -> list[F]:
    """Return the frames to show, without det's.

    They begin at the user's first frame, else at a library's first. If all are det's, all are
    shown.
    """
    for is_other in (_is_ours_or_a_library, _is_ours):
        first = next((i for i, frame in enumerate(frames) if not is_other(filename(frame))), None)
        if first is not None:
            return [frame for frame in frames[first:] if not _is_ours(filename(frame))]
    return list(frames)


def _is_ours_or_a_library(filename: str) -> bool:
    return _is_ours(filename) or is_installed(filename) or filename.startswith(_PYTHON)


def _is_ours(filename: str) -> bool:
    if filename.startswith("<frozen") or filename.endswith("runpy.py"):
        return True
    return any(filename.startswith(folder) for folder in _our_folders())


def _our_folders() -> list[str]:
    """Return the folders of det's packages. A user's folder may have the name of one."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _OURS]
    return [os.path.join(os.path.dirname(file), "") for file in files if file]
